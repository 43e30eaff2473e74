//! Folding dims away: `sum`, `max` and `min` over dims. (`prod` is in `prod.rs`, `all` and `any` in `truth_folds.rs`.)

use super::composite::primitive;
use crate::family::float;
use crate::signature::DIMS;
use crate::tensor::{better, each_position};
use crate::{
    Computes, Emit, F64Tensor, Family, Fold, Graph, Id, Kind, Linear, Op, OpCall, OpError, Precision, Roles,
    Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Monoid, Prim};
use std::sync::Arc;

/// The fold of `dims` by a monoid. `Max` and `Min` fold one dim, so that the element that a gradient goes to is defined:
/// the first of the greatest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// How to fold.
    pub monoid: Monoid,
    /// What is folded away.
    pub dims: Vec<Dim>,
}

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "sum",
        signature: Signature::over(&[DIMS]),
        doc: "`sum[d, e](x)`: the sum along dims. Of a product it is one contraction.",
        build: |g, c| {
            let x = c.unified(g, true)?;
            g.add_op(Arc::new(Reduce { monoid: Monoid::Sum, dims: c.dims() }), &x)
        },
        samples: || {
            vec![
                Sample::call("inner", "sum", &["b"], vec![float(&[("a", 5), ("b", 3)])]),
                Sample::call("outer", "sum", &["a"], vec![float(&[("a", 5), ("b", 3)])]),
                Sample::call("both", "sum", &["a", "b"], vec![float(&[("a", 5), ("b", 3)])]),
                Sample::call(
                    "truth values",
                    "sum",
                    &["a"],
                    vec![crate::family::truth(&[("a", 5), ("b", 3)])],
                )
                .flat(),
            ]
        },
    },
    Family {
        name: "max",
        signature: Signature::over(&[DIMS]),
        doc: "`max[d](x)`: the greatest along dims; NaN where any is. The gradient goes to the first of \
              the greatest, row-major in the dims as they are written: the last one runs fastest.",
        build: |g, c| build(g, c, Monoid::Max),
        samples: || samples("max"),
    },
    Family {
        name: "min",
        signature: Signature::over(&[DIMS]),
        doc: "`min[d](x)`: the least along dims; NaN where any is. The gradient goes to the first of the \
              least, row-major in the dims as they are written: the last one runs fastest.",
        build: |g, c| build(g, c, Monoid::Min),
        samples: || samples("min"),
    },
];

fn samples(name: &'static str) -> Vec<Sample> {
    vec![
        Sample::call("inner", name, &["b"], vec![float(&[("a", 5), ("b", 3)])]),
        Sample::call("outer", name, &["a"], vec![float(&[("a", 5), ("b", 3)])]),
        Sample::call("both", name, &["a", "b"], vec![float(&[("a", 5), ("b", 3)])]),
    ]
}

fn build(g: &mut Graph, c: &OpCall, monoid: Monoid) -> Result<Id, OpError> {
    let mut x = c.unified(g, false)?[0];
    // The innermost first, so that of equal elements the first in row-major order gets the gradient.
    for d in c.dims().iter().rev() {
        x = g.add_op(Arc::new(Reduce { monoid, dims: vec![*d] }), &[x])?;
    }
    Ok(x)
}

impl Reduce {
    /// As users write it.
    fn spelling(&self) -> &'static str {
        match self.monoid {
            Monoid::And => "all",
            Monoid::Or => "any",
            monoid => monoid.name(),
        }
    }
}

impl Op for Reduce {
    fn name(&self) -> &'static str {
        self.spelling()
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        let (name, of) = (self.spelling(), x[0].dtype);
        let (fits, takes) = match self.monoid {
            Monoid::And | Monoid::Or => (of == DType::Bool, "truth values"),
            // Bytes have no room for sums: they would wrap, and where they wrap would depend on the layout.
            Monoid::Sum | Monoid::Prod => (super::unary::signed(of), "floats and i32"),
            _ => (of.is_float() || of.is_int(), "numbers"),
        };
        if !fits {
            let e = OpError::new(codes::E0202, format!("`{name}` over dims takes {takes}, not {of}"));
            let help = if takes == "truth values" {
                "compare it: `x != 0`"
            } else {
                "cast it first: `cast(…, float)`"
            };
            return Err(e.operand(0).help(help));
        }
        let extreme = matches!(self.monoid, Monoid::Max | Monoid::Min);
        if let Some(d) = self.dims.iter().find(|d| table.size(**d) == 0 && extreme) {
            return Err(OpError::new(
                codes::E0204,
                format!("`{name}[{0}]`: `{0}` has size 0", table.name(*d)),
            ));
        }
        let dims: Vec<Dim> = x[0].dims.iter().copied().filter(|d| !self.dims.contains(d)).collect();
        Ok(Type::new(x[0].dtype, dims))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let sum = self.monoid == Monoid::Sum;
        Roles::new(x, y, self.monoid, if sum { Linear::Only([0].into()) } else { Linear::No })
    }

    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Reduction(Fold::By(self.monoid)))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        // The greatest of several is one of them, without rounding.
        let exact = matches!(self.monoid, Monoid::Max | Monoid::Min);
        if exact { Precision::AsOperands } else { Precision::Sums }
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        match self.monoid {
            Monoid::Sum => return vec![Some(dy)],
            Monoid::Prod => return vec![Some(super::prod::gradient(g, x[0], &self.dims, dy))],
            Monoid::And | Monoid::Or => return vec![None],
            _ => {}
        }
        let dim = self.dims[0];
        let arg = if self.monoid == Monoid::Max { Monoid::ArgMax } else { Monoid::ArgMin };
        let first = super::arg_extreme(g, arg, x[0], dim);
        let here = g.index(dim);
        let hit = g.binary("==", here, first);
        vec![Some(g.masked(hit, dy))]
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::Reduce { monoid: self.monoid });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        x[0].dims.iter().map(|d| size(*d)).product()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let start = match self.monoid {
            Monoid::Max => f64::NEG_INFINITY,
            Monoid::Min => f64::INFINITY,
            Monoid::Prod | Monoid::And => 1.0,
            _ => 0.0,
        };
        let mut out = F64Tensor::build(table, &y.dims, |_| start);
        let dims = x[0].dims.clone();
        each_position(&table.shape(&dims), |at| {
            let v = x[0].at(&dims, at);
            let o = out.offset(&dims, at);
            let old = out.data[o];
            out.data[o] = match self.monoid {
                Monoid::Max | Monoid::Or if better(true, v, old) => v,
                Monoid::Min | Monoid::And if better(false, v, old) => v,
                Monoid::Max | Monoid::Or | Monoid::Min | Monoid::And => old,
                Monoid::Prod => old * v,
                _ => old + v,
            };
        });
        out
    }
}
