//! What crosses the boundary of a loop: see [`crate::Boundary`]. Neither the gradient nor the steps of one are its own: both
//! belong to its loop, which `autodiff` and the lowering handle as a whole.

use crate::{
    Boundary, Crossing, Emit, F64Tensor, Family, Graph, Id, Kind, Linear, Op, OpError, Precision, Roles, Type,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims};

/// Loops are written as `repeat`.
pub(crate) static FAMILY: &[Family] = &[];

impl Op for Boundary {
    fn name(&self) -> &'static str {
        match self.how {
            Crossing::Carry(_) => "carry",
            Crossing::Slice => "slice",
            Crossing::Final => "final",
            Crossing::Stack => "stack",
            Crossing::Accumulate => "accumulate",
        }
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        let [x] = x else { return Err(OpError::new(codes::E0212, "it has one operand")) };
        let mut ty = (*x).clone();
        let has = ty.has(self.dim);
        match self.how {
            Crossing::Slice if has => ty.dims.retain(|d| *d != self.dim),
            Crossing::Stack if !has => ty.dims.insert(0, self.dim),
            Crossing::Carry(_) | Crossing::Final | Crossing::Accumulate if !has => {}
            _ => return Err(OpError::new(codes::E0203, "the dim of its loop is not as it must be")),
        }
        if matches!(self.how, Crossing::Carry(_) | Crossing::Accumulate) {
            ty.range = None;
        }
        Ok(ty)
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        vec![self.dim]
    }

    fn roles(&self, x: &[&Type], y: &Type, _: &Dims) -> Roles {
        let linear = match self.how {
            Crossing::Accumulate => Linear::Jointly,
            _ => Linear::No,
        };
        Roles::elementwise(x, y, linear).whole(&[self.dim])
    }

    fn detail(&self) -> String {
        format!(" of loop {}", self.of.0)
    }

    fn kind(&self) -> Kind {
        Kind::Boundary(*self)
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        if self.how == Crossing::Accumulate { Precision::Sums } else { Precision::AsOperands }
    }

    fn vjp(&self, _: &mut Graph, _: &[Id], _: Id, _: Id, need: &[bool]) -> Vec<Option<Id>> {
        vec![None; need.len()]
    }

    fn lower(&self, _: &mut dyn Emit) {}

    fn flops(&self, _: &[&Type], _: &Type, _: &dyn Fn(Dim) -> u64, _: &Dims) -> u64 {
        0
    }

    fn oracle(&self, _: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        // What it is depends on the iteration: whoever evaluates unrolls the loop.
        F64Tensor::build(table, &y.dims, |_| f64::NAN)
    }
}
