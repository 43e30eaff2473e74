//! `where c { x } else { 0 }`: a choice that is linear, so that unfinished sums may pass it.

use crate::family::{float, truth};
use crate::{Emit, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type, union};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dims, Expr};

/// The second operand where the first is true, else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask;

/// Gradients are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "mask",
    signature: Signature::SYNTAX,
    doc: "The value where a condition holds, else 0.",
    build: |g, c| {
        let (m, x) = (c.tensor(g, 0), c.tensor(g, 1));
        Ok(g.masked(m, x))
    },
    samples: || {
        let inputs = vec![truth(&[("a", 5)]), float(&[("a", 5), ("b", 3)])];
        vec![Sample::call("mask", "mask", &[], inputs)]
    },
}];

impl Op for Mask {
    fn name(&self) -> &'static str {
        "mask"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(x[1].dtype, union([x[1], x[0]])))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([1].into()))
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        let (dims, to) = (g.ty(y).dims.clone(), g.ty(x[1]).dims.clone());
        let d = g.masked(x[0], dy);
        vec![None, Some(g.pull_back(&[d], &dims, &to))]
    }

    fn scalar(&self, e: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        let zero = e.constant(0.0, e.dtype(x[1]));
        Some(e.select(x[0], x[1], zero))
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(if x[0] != 0.0 { x[1] } else { 0.0 })
    }
}
