//! The gradient of cross-entropy for its logits, as one op: `(softmax(logits) - onehot(label)) * dy`.

use super::composite::in_place;
use super::cross_entropy::check;
use super::softmax::{log_sum_exp, shifted};
use crate::family::{float, index_of};
use crate::{
    Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, Signature,
    Type, union,
};
use meshwright_plan::{Dim, Dims, Prim};

/// `(softmax(logits) - onehot(label)) * dy` along the class dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyGrad {
    /// The class dim.
    pub dim: Dim,
}

/// Gradients are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "cross_entropy_grad",
    signature: Signature::SYNTAX,
    doc: "The gradient of `cross_entropy`.",
    build: |g, c| {
        let dim = c.dim();
        let x: Vec<Id> = (0..3).map(|i| c.tensor(g, i)).collect();
        Ok(g.op(CrossEntropyGrad { dim }, &x))
    },
    samples: || {
        let (a, v) = (("a", 5), ("v", 7));
        let inputs = || vec![float(&[a, v]), index_of(&[a], v), float(&[a])];
        vec![
            Sample::call("per row", "cross_entropy_grad", &["v"], inputs()).flat(),
            Sample::call(
                "constant cotangent",
                "cross_entropy_grad",
                &["v"],
                vec![float(&[v, a]), index_of(&[a], v), float(&[])],
            )
            .flat(),
        ]
    },
}];

impl Op for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        check(&x[..2], self.dim, table)?;
        Ok(Type::new(x[0].dtype, union([x[0], x[2]])))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([2].into())).whole(&[self.dim])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        // Second derivatives are not part of the language.
        vec![None, None, None]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(vec![self.dim])
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (_, e, sum) = shifted(g, x[0], self.dim);
        let r = g.unary(&super::RECIP, sum);
        let p = g.product(&[e, r]);
        let here = g.index(self.dim);
        let hit = g.binary("==", here, x[1]);
        let hot = g.cast(hit, g.ty(x[0]).dtype);
        let minus = g.unary(&super::NEG, hot);
        let d = g.sum_of(&[p, minus]);
        Some(g.product(&[d, x[2]]))
    }

    fn lower(&self, e: &mut dyn Emit) {
        in_place(e, Prim::CrossEntropyGrad { dim: self.dim });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        6 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let rest: Vec<Dim> = x[0].dims.iter().copied().filter(|d| *d != self.dim).collect();
        let lse = log_sum_exp(table, x[0], self.dim, &rest);
        let class = y.dims.iter().position(|d| *d == self.dim).unwrap_or(0);
        F64Tensor::build(table, &y.dims, |at| {
            if lse.at(&y.dims, at).is_infinite() {
                return f64::NAN;
            }
            let p = (x[0].at(&y.dims, at) - lse.at(&y.dims, at)).exp();
            let hot = f64::from(u8::from(x[1].at(&y.dims, at) as usize == at[class]));
            (p - hot) * x[2].at(&y.dims, at)
        })
    }
}
