//! A part of an expression by itself.

use crate::expr::{Expr, Reg, Scalar};
use crate::{Computed, Operand};
use meshwright_sorted::{SortedMap, SortedSet};

/// The expression of one register, in which other registers are loaded from where they are `written`, and its operands in the
/// order in which it loads them; `inputs` are those of the whole expression.
pub fn subexpression(
    expr: &Expr,
    reg: Reg,
    written: Vec<(Reg, &Operand)>,
    inputs: &[Operand],
) -> (Computed, Vec<Operand>) {
    let (mut made, mut reads): (Expr, Vec<Operand>) = (Expr::default(), vec![]);
    let from = |at: Reg| written.iter().find(|(r, _)| *r == at && *r != reg);
    let (mut wanted, mut todo) = (SortedSet::from([reg]), vec![reg]);
    while let Some(at) = todo.pop() {
        if from(at).is_none() {
            let read = expr.nodes[usize::from(at)].scalar.reads();
            todo.extend(read.into_iter().filter(|r| wanted.insert(*r)));
        }
    }
    let mut regs: SortedMap<Reg, Reg> = SortedMap::new();
    for at in wanted {
        let node = &expr.nodes[usize::from(at)];
        let mut load = |operand: &Operand, made: &mut Expr| {
            let slot = reads.iter().position(|r| r == operand).unwrap_or_else(|| {
                reads.push(operand.clone());
                reads.len() - 1
            });
            made.push(Scalar::Load(slot as u16), node.dtype)
        };
        let new = match (from(at), node.scalar) {
            (Some((_, operand)), _) => load(operand, &mut made),
            (None, Scalar::Load(k)) => load(&inputs[usize::from(k)], &mut made),
            (None, other) => made.push(other.map_reads(|r| regs[&r]), node.dtype),
        };
        regs.insert(at, new);
    }
    (Computed { expr: made, reg: regs[&reg] }, reads)
}
