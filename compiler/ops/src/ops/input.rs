//! Program inputs: values that are bound before the step.

use crate::op::eq_by;
use crate::{Emit, F64Tensor, Family, Graph, Id, InputOpKind, Kind, Linear, Op, OpError, Roles, Type};
use meshwright_plan::Dims;

/// An input, a parameter, optimizer state, a state or the number of the step.
#[derive(Clone, Debug)]
pub struct InputOp {
    /// Its kind.
    pub input: InputOpKind,
    /// Its type, as declared.
    pub ty: Type,
}

/// Program inputs are written as declarations.
pub(crate) static FAMILY: &[Family] = &[];

eq_by!(InputOp, |l| (std::mem::discriminant(&l.input), l.input.name().to_string(), l.ty.clone()));

impl Op for InputOp {
    fn name(&self) -> &'static str {
        match &self.input {
            InputOpKind::Input { .. } => "input",
            InputOpKind::Param { .. } => "param",
            InputOpKind::OptimizerState { .. } => "moment",
            InputOpKind::State { .. } => "state",
            InputOpKind::StepNumber => "step",
        }
    }

    fn infer(&self, _: &[&Type], _: &Dims) -> Result<Type, OpError> {
        Ok(self.ty.clone())
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        Roles::elementwise(x, y, Linear::No)
    }

    fn kind(&self) -> Kind {
        Kind::Input(self.input.clone())
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        // An input has no meaning of its own: whoever evaluates binds it.
        F64Tensor::build(table, &y.dims, |_| f64::NAN)
    }
}
