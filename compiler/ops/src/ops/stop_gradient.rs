//! The same value, through which no gradient passes.

use crate::{Emit, Family, Graph, Id, Linear, Op, OpError, Roles, Sample, Signature, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr};

/// The same value, through which no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StopGradient;

/// How it is written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "stop_gradient",
    signature: Signature::UNARY,
    doc: "`stop_gradient(x)`: the value, taken as a constant by differentiation.",
    build: |g, c| {
        let x = c.tensor(g, 0);
        Ok(g.op(StopGradient, &[x]))
    },
    samples: || {
        vec![Sample::call("stop", "stop_gradient", &[], vec![crate::family::float(&[("a", 5)])]).flat()]
    },
}];

impl Op for StopGradient {
    fn name(&self) -> &'static str {
        "stop_gradient"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(x[0].clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into()))
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![None]
    }

    fn scalar(&self, _: &mut Expr, x: &[Reg], _: &[&Type], _: &Type, _: &Dims) -> Option<Reg> {
        Some(x[0])
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn element(&self, x: &[f64], _: &Type) -> Option<f64> {
        Some(x[0])
    }
}
