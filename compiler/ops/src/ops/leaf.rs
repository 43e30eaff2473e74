//! Leaves: what is bound before the step.

use crate::op::eq_by;
use crate::{Emit, F64Tensor, Family, Graph, Id, InputOpKind, Kind, Linear, Op, OpError, Roles, Type};
use meshwright_plan::Dims;

/// An input, a parameter, a moment, a state or the number of the step.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// What it is.
    pub leaf: InputOpKind,
    /// Its type, as declared.
    pub ty: Type,
}

/// Leaves are written as declarations.
pub(crate) static FAMILY: &[Family] = &[];

eq_by!(Leaf, |l| (std::mem::discriminant(&l.leaf), l.leaf.name().to_string(), l.ty.clone()));

impl Op for Leaf {
    fn name(&self) -> &'static str {
        match &self.leaf {
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
        Kind::Input(self.leaf.clone())
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, _: &[bool]) -> Vec<Option<Id>> {
        Vec::new()
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        // A leaf has no meaning of its own: whoever evaluates binds it.
        F64Tensor::build(table, &y.dims, |_| f64::NAN)
    }
}
