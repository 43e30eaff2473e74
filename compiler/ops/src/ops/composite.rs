//! What composite ops share: their one way to a Plan step.

use crate::Emit;
use meshwright_plan::{Operand, StepKind};

/// Appends the step that `make` builds from the operands and the result, stored in the order of the type's dims.
pub fn primitive(e: &mut dyn Emit, make: impl FnOnce(Vec<Operand>, Operand) -> StepKind) {
    let inputs: Vec<Operand> = (0..e.input_count()).map(|i| e.input(i)).collect();
    let order = e.result_type().dims.clone();
    let out = e.output(&order);
    e.push(make(inputs, out));
}
