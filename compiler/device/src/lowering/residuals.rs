//! Values that loops leave to others: stored where they are made, and taken where they are read.

use super::build::{OpenLoop, ProgramBuilder};
use super::graph::Operation;
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::passes::residuals::{ResidualStep, Stacked};
use crate::slot::{StoredPositions, TensorSlot};
use crate::stored::{stored_as, stored_shape};
use burn_ir::TensorStatus;
use meshwright_plan::{BufId, Step};

/// The stored positions of open loops, counted from the first one that the device has.
fn stored_positions(open: &[OpenLoop], over: &[Stacked]) -> Result<Vec<StoredPositions>, LoweringError> {
    let each = over.iter().map(|of| {
        let own = open.iter().rfind(|open| open.dim == of.dim).map(|open| &open.positions);
        let own = own.ok_or_else(|| LoweringError::Plan("a value is stored outside of its loop".into()))?;
        let from = of.from.saturating_sub(own.start);
        Ok(StoredPositions { dim: of.dim, from, count: own.len().saturating_sub(from) })
    });
    each.collect()
}

impl ProgramBuilder<'_> {
    /// A step of a stack that is kept position by position.
    pub(super) fn residual(
        &mut self,
        index: usize,
        step: &Step,
        how: ResidualStep,
        mut ending: Vec<TensorSlot>,
    ) -> Result<(), LoweringError> {
        let operand = match how {
            ResidualStep::Nothing => None,
            ResidualStep::Store { .. } => step.reads.get(1),
            ResidualStep::Load { .. } => step.writes.first(),
        };
        let local = operand.map(|o| self.lowering.context.local(o)).transpose()?;
        let local = local.filter(|l| self.lowering.exists(l.elements()));
        if let Some(local) = local {
            let slot = TensorSlot::Buffer(local.buf);
            // A chunk keeps its own, as another device would. What a loop over stages leaves is that of the chunk that has the
            // position.
            let (chunk, chunks) = self.chunk_of_pass();
            let graph = &mut self.lowering.graph;
            let (shape, dtype) = (stored_shape(local.dtype, &local.shape), stored_as(local.dtype));
            let slot_of = |stack: BufId, over: &[StoredPositions], at: usize| match over.len() {
                1 => TensorSlot::Residual(stack, at * chunks + chunk),
                _ => TensorSlot::Residual(stack, at),
            };
            let operation = match how {
                ResidualStep::Nothing => None,
                ResidualStep::Store { stack, over } => {
                    let over = stored_positions(&self.open, &over)?;
                    let ends = ending.iter().position(|s| *s == slot);
                    ending.retain(|s| *s != slot);
                    let status =
                        if ends.is_some() { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
                    let value = graph.slots.tensor(slot, &shape, dtype, status);
                    let of = graph.residual(over.clone(), |at| slot_of(stack, &over, at));
                    Some(Operation::Kernel(Kernel::Store(of), vec![value], vec![]))
                }
                ResidualStep::Load { stack, over, last } => {
                    let over = stored_positions(&self.open, &over)?;
                    let out = graph.slots.tensor(slot, &shape, dtype, TensorStatus::NotInit);
                    let residual = graph.residual(over.clone(), |at| slot_of(stack, &over, at));
                    Some(Operation::Kernel(Kernel::Load { residual, last }, vec![], vec![out]))
                }
            };
            self.operations.extend(operation.map(|o| (o, index)));
        }
        self.finish_step(index, &ending);
        Ok(())
    }
}
