//! Groups of steps along rows by a kernel of our own.

use super::super::cube::own::OwnKernel;
use super::super::cube::rows::RowCall;
use super::super::emit::ROWS;
use super::super::lower::{BurnKernel, Lower};
use super::program::RowProgram;
use crate::engine::context::Local;
use crate::engine::graph::TensorSlot;
use crate::engine::lowering::{LoweringError, extents, stored_as};
use crate::engine::row_groups::RowGroup;
use meshwright_plan::{BufId, Operand};
use std::ops::Range;
use std::sync::Arc;

/// What a kernel computes, reads from memory, and writes.
struct OwnRows {
    call: RowCall,
    reads: Vec<Local>,
    writes: Vec<Local>,
}

impl Lower<'_> {
    /// See [`crate::backend::Backend::fuses`].
    pub(in super::super) fn has_row_kernel(&self, group: &RowGroup) -> bool {
        matches!(self.own_rows(group), Ok(Some(_)))
    }

    /// See [`crate::backend::Backend::lower_rows`].
    pub(in super::super) fn row_group(&mut self, group: &RowGroup) -> Result<(), LoweringError> {
        let Some(OwnRows { call, reads, writes }) = self.own_rows(group)? else {
            return Err(LoweringError::Plan("there is no kernel for a group of steps along rows".into()));
        };
        let read = reads.iter().map(|local| self.read(local).val).collect();
        let outs = writes.iter().map(|out| (extents(&out.shape), stored_as(out.dtype)));
        self.kernels.push(BurnKernel::Own(OwnKernel::Rows(Arc::new(call))));
        let made = self.graph.kernel((ROWS, self.kernels.len() - 1), read, outs);
        for (out, val) in writes.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
        Ok(())
    }

    fn own_rows(&self, group: &RowGroup) -> Result<Option<OwnRows>, LoweringError> {
        if !self.graph.capabilities.own_kernels {
            return Ok(None);
        }
        let plan = self.context.plan;
        let dims = group.dims();
        let Some(program) = RowProgram::of(plan, group, &dims) else { return Ok(None) };
        let all = |operands: &[Operand]| -> Result<Vec<Local>, LoweringError> {
            operands.iter().map(|o| self.local(o)).collect()
        };
        let (reads, writes) = (all(&program.reads)?, all(&program.writes)?);
        // What contradicts itself is told where there is no kernel.
        let both: Vec<&Local> = reads.iter().chain(&writes).collect();
        let range = |dim| both.iter().find_map(|l| l.range(dim).ok().cloned());
        let space: Option<Vec<Range<usize>>> = dims.iter().map(|dim| range(*dim)).collect();
        let (Ok(()), Some(space)) = (self.context.check_aligned(&both, &[]), space) else { return Ok(None) };
        let mut operands = vec![];
        for local in &reads {
            let drawn = self.masks.drawn_by.get(&local.buf).copied();
            let Some(operand) = self.kernel_operand(local, &dims, drawn)? else { return Ok(None) };
            operands.push(operand);
        }
        let call = RowCall::new(&program.of, (&space, group.rows.len()), operands);
        let reads: Vec<Local> =
            reads.into_iter().filter(|l| !self.masks.drawn_by.contains_key(&l.buf)).collect();
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
