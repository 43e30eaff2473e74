//! Cross-entropy of logits and a true class: one kernel where the class dim is whole, primitives where it is split, so
//! that logits over a split vocabulary are never gathered.

use super::composite::primitive;
use super::softmax::{log_sum_exp, shifted};
use crate::family::{float, index_of};
use crate::signature::{Argument, DIM};
use crate::{
    CrossEntropyGrad, Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Lookup, Op, OpError, Precision,
    Roles, Sample, Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::{DType, Dim, Dims, Prim};
use std::sync::Arc;

/// `logsumexp(logits) - logits[dim = label]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropy {
    /// The class dim.
    pub dim: Dim,
}

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "cross_entropy",
    signature: Signature {
        operands: &[Argument::once("logits"), Argument::once("label")],
        ..Signature::over(&[DIM])
    },
    doc: "`cross_entropy[d](logits, label)`: minus the logarithm of the softmax of the logits along `d` at the true class; NaN where the greatest logit is infinite.",
    build: |g, c| {
        let (x, label, dim) = (c.tensor(g, 0), c.tensor(g, 1), c.dim());
        g.add_op(Arc::new(CrossEntropy { dim }), &[x, label])
    },
    samples: || {
        let (a, b, v) = (("a", 5), ("b", 3), ("v", 7));
        vec![
            Sample::call("inner", "cross_entropy", &["v"], vec![float(&[a, v]), index_of(&[a], v)]),
            Sample::call("outer", "cross_entropy", &["v"], vec![float(&[v, a, b]), index_of(&[b, a], v)]),
            Sample::call("one label", "cross_entropy", &["v"], vec![float(&[a, v]), index_of(&[], v)]),
        ]
    },
}];

/// Checks logits and label, which both ops of this kind take.
pub(super) fn check(x: &[&Type], dim: Dim, table: &Dims) -> Result<(), OpError> {
    let name = table.name(dim);
    if !x[0].dtype.is_float() {
        return Err(OpError::new(
            codes::E0202,
            format!("`cross_entropy` takes float logits, not {}", x[0].dtype),
        )
        .operand(0));
    }
    if x[1].dtype != DType::I32 || x[1].range != Some(dim) {
        let range = x[1].range.map_or(String::new(), |r| format!(" in {}", table.name(r)));
        return Err(OpError::new(
            codes::E0205,
            format!(
                "the label of `cross_entropy[{name}]` must be an `i32 in {name}`, not {}{range}",
                x[1].dtype
            ),
        )
        .operand(1)
        .help(format!("declare it `i32 in {name}`")));
    }
    if x[1].has(dim) {
        return Err(OpError::new(
            codes::E0203,
            format!(
                "the label of `cross_entropy[{name}]` has the dim `{name}`: it must be the position along it"
            ),
        )
        .operand(1));
    }
    if let Some(d) = x[1].dims.iter().find(|d| !x[0].has(**d)) {
        return Err(OpError::new(
            codes::E0203,
            format!(
                "the label has a dim `{}` that the logits {} lack",
                table.name(*d),
                table.list(&x[0].dims)
            ),
        )
        .operand(1));
    }
    Ok(())
}

impl Op for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        check(x, self.dim, table)?;
        let dims: Vec<Dim> = union(x.iter().copied()).into_iter().filter(|d| *d != self.dim).collect();
        Ok(Type::new(x[0].dtype, dims))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No).whole(&[self.dim])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![Some(g.op(CrossEntropyGrad { dim: self.dim }, &[x[0], x[1], dy])), None]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(vec![self.dim])
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (z, _, sum) = shifted(g, x[0], self.dim);
        let log = g.unary(&super::LOG, sum);
        let hit = g.op(Lookup { dims: vec![self.dim] }, &[z, x[1]]);
        let minus = g.unary(&super::NEG, hit);
        Some(g.sum_of(&[log, minus]))
    }

    fn lower(&self, e: &mut dyn Emit) {
        primitive(e, Prim::CrossEntropy { dim: self.dim });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        5 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let lse = log_sum_exp(table, x[0], self.dim, &y.dims);
        let mut dims = y.dims.clone();
        dims.push(self.dim);
        F64Tensor::build(table, &y.dims, |at| {
            let mut position = at.to_vec();
            position.push(x[1].at(&y.dims, at) as usize);
            if lse.at(&y.dims, at).is_infinite() {
                return f64::NAN;
            }
            lse.at(&y.dims, at) - x[0].at(&dims, &position)
        })
    }
}
