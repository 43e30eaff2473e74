//! Groups of steps along rows by a kernel of our own.

use super::super::lower::Lower;
use super::program::RowProgram;
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::kernels::rows::RowCall;
use crate::lowering::local::Local;
use crate::passes::row_groups::RowGroup;
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};
use meshwright_plan::{BufId, Operand};
use std::ops::Range;
use std::sync::Arc;

/// A row kernel with its operands in memory, and its results.
struct OwnRows {
    call: RowCall,
    reads: Vec<Local>,
    writes: Vec<Local>,
}

impl Lower<'_> {
    /// See [`Lowering::fuses`](crate::lowering::Lowering::fuses).
    pub(crate) fn has_row_kernel(&self, group: &RowGroup) -> bool {
        matches!(self.own_rows(group), Ok(Some(_)))
    }

    /// Records the kernel of a group.
    pub(crate) fn row_group(&mut self, group: &RowGroup) -> Result<(), LoweringError> {
        let Some(OwnRows { call, reads, writes }) = self.own_rows(group)? else {
            return Err(LoweringError::Plan("there is no kernel for a group of steps along rows".into()));
        };
        let read = reads.iter().map(|local| self.read(local).val).collect();
        let outs = writes.iter().map(|out| (extents(&out.shape), stored_as(out.dtype)));
        let made = self.graph.kernel(Kernel::Rows(Arc::new(call)), read, outs);
        for (out, val) in writes.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
        Ok(())
    }

    fn own_rows(&self, group: &RowGroup) -> Result<Option<OwnRows>, LoweringError> {
        if !self.graph.target.blocks {
            return Ok(None);
        }
        let plan = self.context.plan;
        let dims = group.dims();
        let Some(program) = RowProgram::of(plan, group, &dims) else { return Ok(None) };
        let all = |operands: &[Operand]| -> Result<Vec<Local>, LoweringError> {
            operands.iter().map(|o| self.local(o)).collect()
        };
        let (reads, writes) = (all(&program.reads)?, all(&program.writes)?);
        // A group that contradicts itself has no kernel; the lowering of its steps reports the error.
        let both: Vec<&Local> = reads.iter().chain(&writes).collect();
        let range = |dim| both.iter().find_map(|l| l.range(dim).ok().cloned());
        let space: Option<Vec<Range<usize>>> = dims.iter().map(|dim| range(*dim)).collect();
        let (Ok(()), Some(space)) = (self.context.check_aligned(&both, &[]), space) else { return Ok(None) };
        let mut operands = vec![];
        for local in &reads {
            let drawn = self.decisions.masks.drawn_by.get(&local.buf).copied();
            let Some(operand) = self.kernel_operand(local, &dims, drawn)? else { return Ok(None) };
            operands.push(operand);
        }
        let call = RowCall::new(&program.of, (&space, group.rows.len()), operands);
        let reads: Vec<Local> =
            reads.into_iter().filter(|l| !self.decisions.masks.drawn_by.contains_key(&l.buf)).collect();
        let given: Vec<(BufId, BufId)> =
            group.steps.iter().flat_map(|at| &plan.steps[*at].aliases).copied().collect();
        let donations: Vec<(usize, usize)> = (writes.iter().enumerate())
            .filter_map(|(to, out)| Some((reads.iter().position(|l| l.buf == first(&given, out.buf))?, to)))
            .collect();
        Ok(call.map(|call| OwnRows { call: call.with_donations(&donations), reads, writes }))
    }
}

/// Whose storage a buffer has in the end, where each takes that of another.
fn first(given: &[(BufId, BufId)], mut buf: BufId) -> BufId {
    while let Some((from, _)) = given.iter().find(|(_, to)| *to == buf) {
        buf = *from;
    }
    buf
}
