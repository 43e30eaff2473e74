//! The finished gradient of a parameter: an identity at which `grads:` rules speak.

use crate::{Emit, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{Dim, Dims, Expr};

/// The finished gradient of a parameter: an identity at which `grads:` rules speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradient;

/// Differentiation makes it.
pub(crate) static FAMILY: &[Family] = &[];

impl Op for Gradient {
    fn name(&self) -> &'static str {
        "gradient"
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(x[0].clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::Only([0].into()))
    }

    fn kind(&self) -> Kind {
        Kind::Gradient
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Full
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, dy: Id, _: &[bool]) -> Vec<Option<Id>> {
        vec![Some(dy)]
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
