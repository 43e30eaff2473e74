//! Softmax and its logarithm along a dim: one kernel where the dim is whole, primitives where it is split.

use super::composite::in_place;
use crate::family::float;
use crate::signature::DIM;
use crate::{
    Emit, ExpandWhen, F64Tensor, Family, Graph, Id, Linear, Op, OpCall, OpError, Precision, Roles, Sample,
    Signature, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Monoid, Prim};
use std::sync::Arc;

/// `exp(x) / sum(exp(x))` along a dim, or its logarithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Along which dim.
    pub dim: Dim,
    /// Whether to give the logarithm.
    pub log: bool,
}

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "softmax",
        signature: Signature::over(&[DIM]),
        doc: "`softmax[d](x)`: `exp(x) / sum[d](exp(x))`, computed without overflow. Where the greatest is infinite, all of them are NaN.",
        build: |g, c| build(g, c, false),
        samples: || samples("softmax"),
    },
    Family {
        name: "log_softmax",
        signature: Signature::over(&[DIM]),
        doc: "`log_softmax[d](x)`: the logarithm of the softmax, computed without overflow. Where the greatest is infinite, all of them are NaN.",
        build: |g, c| build(g, c, true),
        samples: || samples("log_softmax"),
    },
];

fn build(g: &mut Graph, c: &OpCall, log: bool) -> Result<Id, OpError> {
    let (x, dim) = (c.tensor(g, 0), c.dim());
    g.add_op(Arc::new(Softmax { dim, log }), &[x])
}

fn samples(name: &'static str) -> Vec<Sample> {
    vec![
        Sample::call("inner", name, &["b"], vec![float(&[("a", 5), ("b", 3)])]),
        Sample::call("outer", name, &["a"], vec![float(&[("a", 5), ("b", 3)])]),
        // Large enough that a softmax without its maximum would overflow: shift-invariance must not hide a wrong one.
        Sample::call(
            "large",
            name,
            &["a"],
            vec![crate::family::between(&[("a", 5), ("b", 2)], 900.0, 904.0)],
        ),
    ]
}

/// The operand less its maximum along a dim, and the sum of the exponentials of that; shared by all that build on it, so
/// that common subexpressions find them once.
pub(super) fn shifted(g: &mut Graph, x: Id, dim: Dim) -> (Id, Id, Id) {
    let max = g.reduce(Monoid::Max, x, &[dim]);
    let minus = g.unary(&super::NEG, max);
    let z = g.sum_of(&[x, minus]);
    let e = g.unary(&super::EXP, z);
    let sum = g.reduce(Monoid::Sum, e, &[dim]);
    (z, e, sum)
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError> {
        if !x[0].dtype.is_float() {
            return Err(OpError::new(
                codes::E0202,
                format!("`{}` takes floats, not {}", self.name(), x[0].dtype),
            )
            .operand(0));
        }
        if table.size(self.dim) == 0 {
            return Err(OpError::new(
                codes::E0204,
                format!("`{}[{1}]`: `{1}` has size 0", self.name(), table.name(self.dim)),
            ));
        }
        Ok(Type::new(x[0].dtype, x[0].dims.clone()))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No).whole(&[self.dim])
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(x[0]).dims.clone();
        let rest: Vec<Dim> = dims.iter().copied().filter(|d| *d != self.dim).collect();
        let d = if self.log {
            // dy - softmax * sum(dy)
            let p = g.op(Softmax { dim: self.dim, log: false }, &[x[0]]);
            let sum = g.pull_back(&[dy], &dims, &rest);
            let back = g.product(&[p, sum]);
            let minus = g.unary(&super::NEG, back);
            g.sum_of(&[dy, minus])
        } else {
            // y * (dy - sum(y * dy))
            let dot = g.contract_to(&[y, dy], &rest);
            let minus = g.unary(&super::NEG, dot);
            let inner = g.sum_of(&[dy, minus]);
            g.product(&[y, inner])
        };
        vec![Some(d)]
    }

    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Split(vec![self.dim])
    }

    fn expand(&self, g: &mut Graph, x: &[Id]) -> Option<Id> {
        let (z, e, sum) = shifted(g, x[0], self.dim);
        Some(if self.log {
            let l = g.unary(&super::LOG, sum);
            let minus = g.unary(&super::NEG, l);
            g.sum_of(&[z, minus])
        } else {
            let r = g.unary(&super::RECIP, sum);
            g.product(&[e, r])
        })
    }

    fn lower(&self, e: &mut dyn Emit) {
        in_place(e, Prim::Softmax { dim: self.dim, log: self.log });
    }

    fn flops(&self, x: &[&Type], _: &Type, size: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        5 * x[0].dims.iter().map(|d| size(*d)).product::<u64>()
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let rest: Vec<Dim> = y.dims.iter().copied().filter(|d| *d != self.dim).collect();
        let (max, log) = max_and_log_sum(table, x[0], self.dim, &rest);
        F64Tensor::build(table, &y.dims, |at| {
            let m = max.at(&y.dims, at);
            // Not less their sum: beside a number as large as those of masks the logarithm would be lost.
            let l = if m.is_infinite() { f64::NAN } else { x[0].at(&y.dims, at) - m - log.at(&y.dims, at) };
            if self.log { l } else { l.exp() }
        })
    }
}

/// `log(sum(exp(x)))` along a dim, for oracles.
pub(super) fn log_sum_exp(table: &Dims, x: &F64Tensor, dim: Dim, rest: &[Dim]) -> F64Tensor {
    let (max, log) = max_and_log_sum(table, x, dim, rest);
    F64Tensor::build(table, rest, |at| {
        let m = max.at(rest, at);
        if m.is_infinite() { m } else { m + log.at(rest, at) }
    })
}

/// The greatest along a dim, and `log(sum(exp(x - max)))`.
fn max_and_log_sum(table: &Dims, x: &F64Tensor, dim: Dim, rest: &[Dim]) -> (F64Tensor, F64Tensor) {
    let row = |at: &[usize]| -> Vec<f64> {
        let mut dims = rest.to_vec();
        dims.push(dim);
        let mut position = at.to_vec();
        position.push(0);
        let along = (0..table.size(dim)).map(|i| {
            position[at.len()] = i;
            x.at(&dims, &position)
        });
        along.collect()
    };
    let greater = |m: f64, x: &f64| if m.is_nan() || x.is_nan() { f64::NAN } else { m.max(*x) };
    let max = F64Tensor::build(table, rest, |at| row(at).iter().fold(f64::NEG_INFINITY, greater));
    let log = F64Tensor::build(table, rest, |at| {
        row(at).iter().map(|v| (v - max.at(rest, at)).exp()).sum::<f64>().ln()
    });
    (max, log)
}
