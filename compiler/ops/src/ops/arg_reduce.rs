//! `argmax` and `argmin`: a fold of pairs of value and index, of which the index is then taken.

use super::composite::primitive;
use crate::family::float;
use crate::signature::DIM;
use crate::tensor::{better, each_position};
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpCall, OpError, Roles, Sample, Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::expr::{Reg, Scalar};
use meshwright_plan::{DType, Dim, Dims, Expr, Monoid, Prim};
use std::sync::Arc;

/// The pair of greatest (or least) value and its position along a dim; of equal values the lowest position.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    /// `ArgMax` or `ArgMin`.
    pub monoid: Monoid,
    /// Along which dim.
    pub dim: Dim,
}

/// The position of a pair, as an `i32 in` the dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PairIndex {
    /// The dim that the position is in.
    pub dim: Dim,
}

/// The position of the greatest or least value along a dim.
pub fn arg_extreme(g: &mut Graph, monoid: Monoid, x: Id, dim: Dim) -> Id {
    let pair = g.op(ArgReduce { monoid, dim }, &[x]);
    g.op(PairIndex { dim }, &[pair])
}

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "argmax",
        signature: Signature::over(&[DIM]),
        doc: "`argmax[d](x)`: the position of the greatest along `d`, an `i32 in d`; of equal ones the lowest. NaN counts as greatest.",
        build: |g, c| build(g, c, Monoid::ArgMax),
        samples: || samples("argmax"),
    },
    Family {
        name: "argmin",
        signature: Signature::over(&[DIM]),
        doc: "`argmin[d](x)`: the position of the least along `d`, an `i32 in d`; of equal ones the lowest. NaN counts as least.",
        build: |g, c| build(g, c, Monoid::ArgMin),
        samples: || samples("argmin"),
    },
];

fn build(g: &mut Graph, c: &OpCall, monoid: Monoid) -> Result<Id, OpError> {
    let (x, dim) = (c.tensor(g, 0), c.dim());
    let pair = g.add_op(Arc::new(ArgReduce { monoid, dim }), &[x])?;
    Ok(g.op(PairIndex { dim }, &[pair]))
}

fn samples(name: &'static str) -> Vec<Sample> {
    vec![
        Sample::call("inner", name, &["b"], vec![float(&[("a", 5), ("b", 3)])]).flat(),
        Sample::call("outer", name, &["a"], vec![float(&[("a", 5), ("b", 3)])]).flat(),
        Sample::call("ties", name, &["a"], vec![crate::family::integer(&[("a", 7), ("b", 3)], 0.0, 2.0)])
            .flat(),
    ]
}

impl Op for ArgReduce {
    fn name(&self) -> &'static str {
        self.monoid.name()
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        if !(x[0].dtype.is_float() || x[0].dtype.is_int()) {
            return Err(OpError::new(
                codes::E0202,
                format!("`{}` takes numbers, not {}", self.monoid, x[0].dtype),
            ));
        }
        if table.size(self.dim) == 0 {
            return Err(OpError::new(
                codes::E0204,
                format!("`{}[{1}]`: `{1}` has size 0", self.monoid, table.name(self.dim)),
            ));
        }
        let dims: Vec<Dim> = x[0].dims.iter().copied().filter(|d| *d != self.dim).collect();
        Ok(Type::new(x[0].dtype.pair(), dims))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, self.monoid, Linear::No)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::Reduce { monoid: self.monoid });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        x[0].dims.iter().map(|d| size(*d)).product()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut best = F64Tensor::build(table, &y.dims, |_| f64::NAN);
        best.second = vec![-1.0; best.data.len()];
        let mut dims = y.dims.clone();
        dims.push(self.dim);
        each_position(&table.shape(&dims), |at| {
            let v = x[0].at(&dims, at);
            let o = best.offset(&dims, at);
            if best.second[o] < 0.0 || better(self.monoid == Monoid::ArgMax, v, best.data[o]) {
                best.data[o] = v;
                best.second[o] = at[at.len() - 1] as f64;
            }
        });
        best
    }
}

impl Op for PairIndex {
    fn name(&self) -> &'static str {
        "pair_index"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type { dtype: DType::I32, dims: x[0].dims.clone(), range: Some(self.dim) })
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(e.push(Scalar::PairIndex(x[0]), DType::I32))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, x: &[&F64Tensor], y: &Type, _: &Dims) -> F64Tensor {
        let index = F64Tensor { data: x[0].second.clone(), second: Vec::new(), ..x[0].clone() };
        index.ordered(&y.dims)
    }
}
