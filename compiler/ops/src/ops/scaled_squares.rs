//! Sums of squares of scaled elements: the way to a norm whose sum of squares is beyond its dtype.

use super::composite::primitive;
use crate::family::float;
use crate::{
    Computes, Emit, F64Tensor, Family, Fold, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Sample,
    Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Monoid, Prim, square_scale};

/// The sum of `(scale * x)^2` over the dims that are not in `out`, where `scale` is [`square_scale`] of the dtype: finite
/// wherever the root of the sum of squares is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScaledSquares {
    /// Dims of the result, in order; the operand has them.
    pub out: Vec<Dim>,
}

/// Norms are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "scaled_squares",
    signature: Signature::SYNTAX,
    doc: "The sum of squares of scaled elements.",
    build: |g, c| {
        let x = c.tensor(g, 0);
        let out = g.ty(x).dims.iter().copied().filter(|d| !c.dims().contains(d)).collect();
        Ok(g.op(ScaledSquares { out }, &[x]))
    },
    samples: || {
        vec![sample("all of it", &[]), sample("of each row", &["a"]), sample("of each column", &["b"])]
    },
}];

/// Of elements as large as they are where the op is needed.
fn sample(label: &'static str, keep: &'static [&'static str]) -> Sample {
    Sample::new(label, vec![float(&[("a", 5), ("b", 3)])], move |g, x| {
        let out = keep.iter().filter_map(|d| g.dims.find(d)).collect();
        let positive = g.unary(&super::EXP, x[0]);
        let large = g.scaled(positive, 1.0 / square_scale(g.ty(x[0]).dtype));
        Ok(g.op(ScaledSquares { out }, &[large]))
    })
    .flat()
}

impl Op for ScaledSquares {
    fn name(&self) -> &'static str {
        "scaled_squares"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        if !x[0].dtype.is_float() {
            return Err(OpError::new(
                codes::E0202,
                format!("`scaled_squares` takes floats, not {}", x[0].dtype),
            )
            .operand(0));
        }
        Ok(Type::new(x[0].dtype, self.out.clone()))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::new(x, y, Monoid::Sum, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Reduction(Fold::By(Monoid::Sum)))
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Sums
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        // Only what clips and updates is made of it.
        vec![None]
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::ScaledSquares);
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        3 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let scale = square_scale(y.dtype);
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        let dims = x[0].dims.clone();
        crate::tensor::each_position(&table.shape(&dims), |at| {
            let o = out.offset(&dims, at);
            out.data[o] += (x[0].at(&dims, at) * scale).powi(2);
        });
        out
    }
}
