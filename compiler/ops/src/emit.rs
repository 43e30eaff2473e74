//! What an op lowers through: buffers on one device and the list of primitive steps.

use crate::Type;
use meshwright_plan::{DType, Dim, Dims, Operand, Prim};

/// Where an op puts its steps. Every buffer holds, of each dim, the block that this op's loops give the device; an op
/// never asks which that is.
pub trait Emit {
    /// Names and sizes of the dims.
    fn dims(&self) -> &Dims;

    /// Number of operands.
    fn input_count(&self) -> usize;

    /// The operand of that number: its buffer, with its dims as this op's operand names them.
    fn input(&self, i: usize) -> Operand;

    /// Type of the operand of that number.
    fn input_type(&self, i: usize) -> &Type;

    /// Type of the result.
    fn result_type(&self) -> &Type;

    /// The result's buffer, with its dims stored in the given order. Call it once.
    fn output(&mut self, order: &[Dim]) -> Operand;

    /// A buffer for an intermediate result.
    fn temp(&mut self, dtype: DType, dims: &[Dim]) -> Operand;

    /// A buffer that holds the same as `from` with its dims stored in the given order; a copy where they are not so yet.
    fn reordered(&mut self, from: &Operand, order: &[Dim]) -> Operand;

    /// Appends a step that reads these operands and writes that buffer.
    fn push(&mut self, prim: Prim, reads: Vec<Operand>, out: Operand);
}
