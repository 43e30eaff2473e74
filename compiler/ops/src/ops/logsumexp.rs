//! The logarithm of a sum of exponentials along a dim.

use super::composite::primitive;
use super::softmax::{log_sum_exp, shifted};
use crate::family::float;
use crate::signature::DIM;
use crate::{
    Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, Signature,
    Softmax, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Prim};
use std::sync::Arc;

/// `log(sum(exp(x)))` along a dim, computed without overflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogSumExp {
    /// Along which dim.
    pub dim: Dim,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "logsumexp",
    signature: Signature::over(&[DIM]),
    doc: "`logsumexp[d](x)`: `log(sum[d](exp(x)))`, computed without overflow. Of `-inf` alone it is `-inf`, of what holds `inf` it is `inf`.",
    build: |g, c| {
        let (x, dim) = (c.tensor(g, 0), c.dim());
        g.add_op(Arc::new(LogSumExp { dim }), &[x])
    },
    samples: || {
        vec![
            Sample::call("inner", "logsumexp", &["b"], vec![float(&[("a", 5), ("b", 3)])]),
            Sample::call("outer", "logsumexp", &["a"], vec![float(&[("a", 5), ("b", 3)])]),
        ]
    },
}];

impl Op for LogSumExp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        if !x[0].dtype.is_float() {
            return Err(OpError::new(codes::E0202, format!("`logsumexp` takes floats, not {}", x[0].dtype))
                .operand(0));
        }
        if table.size(self.dim) == 0 {
            return Err(OpError::new(
                codes::E0204,
                format!("`logsumexp[{0}]`: `{0}` has size 0", table.name(self.dim)),
            ));
        }
        let dims: Vec<Dim> = x[0].dims.iter().copied().filter(|d| *d != self.dim).collect();
        Ok(Type::new(x[0].dtype, dims))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No).whole(&[self.dim])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let p = g.op(Softmax { dim: self.dim, log: false }, &[x[0]]);
        vec![Some(g.product(&[p, dy]))]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(vec![self.dim])
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (_, _, sum) = shifted(g, x[0], self.dim);
        let max = g.reduce(meshwright_plan::Monoid::Max, x[0], &[self.dim]);
        let l = g.unary(&super::LOG, sum);
        let finite = g.sum_of(&[l, max]);
        // An infinite maximum is the result: less itself it would be none.
        let size = g.unary(&super::ABS, max);
        let infinity = g.constant(f64::INFINITY, g.ty(x[0]).dtype);
        let infinite = g.binary("==", size, infinity);
        Some(g.choose(infinite, max, finite))
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::LogSumExp { dim: self.dim });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        4 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        log_sum_exp(table, x[0], self.dim, &y.dims)
    }
}
