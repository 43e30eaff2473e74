//! What composite ops share: their ways to a Plan step.

use crate::Emit;
use meshwright_plan::{Operand, StepKind};

/// Appends the step that `make` builds from the operands and the result, stored in the order of the type's dims.
pub fn primitive(e: &mut dyn Emit, make: impl FnOnce(Vec<Operand>, Operand) -> StepKind) {
    let inputs: Vec<Operand> = (0..e.input_count()).map(|i| e.input(i)).collect();
    let order = e.result_type().dims.clone();
    let out = e.output(&order);
    e.push(make(inputs, out));
}

/// The same with the result stored in the order of the first operand, which has the same dims: the kernel works in place.
pub(super) fn in_place(e: &mut dyn Emit, make: impl FnOnce(Vec<Operand>, Operand) -> StepKind) {
    let inputs: Vec<Operand> = (0..e.input_count()).map(|i| e.input(i)).collect();
    let order = inputs[0].dims.clone();
    let out = e.output(&order);
    e.push(make(inputs, out));
}
