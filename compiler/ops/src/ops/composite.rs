//! Ops that lower to one primitive on their operands, in order.

use crate::Emit;
use meshwright_plan::{Dim, Operand, Prim};

/// One primitive that writes the result in the type's order of dims.
pub fn primitive(e: &mut dyn Emit, prim: Prim) {
    let order = e.result_type().dims.clone();
    push(e, prim, &order);
}

/// One primitive that writes the result in the order of the first operand, whose dims it has.
pub(super) fn in_place(e: &mut dyn Emit, prim: Prim) {
    let order = e.input(0).dims;
    push(e, prim, &order);
}

fn push(e: &mut dyn Emit, prim: Prim, order: &[Dim]) {
    let reads: Vec<Operand> = (0..e.input_count()).map(|i| e.input(i)).collect();
    let out = e.output(order);
    e.push(prim, reads, out);
}
