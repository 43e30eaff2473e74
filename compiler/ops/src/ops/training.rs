//! Whether the program trains: a truth value that is known as soon as it is known which program is built.

use crate::{Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Roles, Source, Type};
use meshwright_plan::{DType, Dims};

/// True in training steps, false in evaluations and predictions. Whoever makes a program of a model puts the number in its
/// place, and with it the branch of every choice that it decides; no step is ever made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Training;

/// It is written as the name `training`.
pub(crate) static FAMILY: &[Family] = &[];

impl Op for Training {
    fn name(&self) -> &'static str {
        "training"
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(Type::new(DType::Bool, []))
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Rematerializable(Source::Training)
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn lower(&self, _: &mut dyn Emit) {
        panic!("internal error: `training` is not decided in this program");
    }

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |_| f64::NAN)
    }
}
