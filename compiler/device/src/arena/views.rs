//! The operations of Burn whose result may be a view of an operand, without memory of its own.

use super::row_pitch;
use crate::kernels::result::ResultMemory;
use burn_ir::{BaseOperationIr as Base, BoolOperationIr as BoolOp, FloatOperationIr as FloatOp};
use burn_ir::{IntOperationIr as IntOp, NumericOperationIr as Numeric, OperationIr};

/// Memory of the results of an operation of Burn. Operations that are not listed here may do anything.
pub(crate) fn result_memory(operation: &OperationIr) -> ResultMemory {
    let makes = match operation {
        OperationIr::BaseFloat(Base::Reshape(op)) | OperationIr::BaseInt(Base::Reshape(op)) => {
            let (shape, out) = (op.input.shape.to_vec(), op.out.shape.to_vec());
            // Rows that may have gaps between them stay rows, or are copied.
            let dense = row_pitch(&shape, op.input.dtype.size()) == shape.last().copied().unwrap_or(1);
            return if dense || shape.last() == out.last() {
                ResultMemory::Operand
            } else {
                ResultMemory::Unknown
            };
        }
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => makes(op),
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => match op {
            // A fold of one element may be left out.
            Numeric::SumDim(of) | Numeric::ProdDim(of) | Numeric::MaxDim(of) | Numeric::MinDim(of) => {
                of.input.shape != of.out.shape
            }
            _ => true,
        },
        OperationIr::Float(_, op) => {
            use FloatOp::{Erf, Exp, Log, Log1p, Matmul, Powf, Recip, Sqrt, Tanh};
            matches!(
                op,
                Matmul(_) | Exp(_) | Log(_) | Log1p(_) | Erf(_) | Sqrt(_) | Recip(_) | Tanh(_) | Powf(_)
            )
        }
        OperationIr::Int(op) => matches!(op, IntOp::BitwiseAnd(_) | IntOp::BitwiseOr(_)),
        OperationIr::Bool(op) => matches!(op, BoolOp::Not(_) | BoolOp::And(_) | BoolOp::Or(_)),
        _ => false,
    };
    if makes { ResultMemory::Own } else { ResultMemory::Unknown }
}

/// Whether the result is neither a part of an operand nor an operand with permuted dims.
fn makes(op: &Base) -> bool {
    match op {
        Base::Cat(op) => op.tensors.len() > 1,
        Base::Select(_) | Base::SelectAssign(_) | Base::MaskWhere(_) | Base::MaskFill(_) | Base::Flip(_) => {
            true
        }
        Base::Equal(_) | Base::EqualElem(_) | Base::NotEqual(_) | Base::NotEqualElem(_) => true,
        _ => false,
    }
}
