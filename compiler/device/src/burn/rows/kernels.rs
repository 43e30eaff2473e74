//! Groups of steps along rows by a kernel of our own.

use super::super::fused::FusedCall;
use super::super::lower::Lower;
use super::program::RowProgram;
use crate::decisions::fused::{FusedGroup, RowGroupDims};
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::kernels::rows::RowCall;
use crate::lowering::local::Local;
use meshwright_plan::{BufId, Operand};
use std::ops::Range;
use std::sync::Arc;

impl Lower<'_> {
    /// The call of steps along rows; none if the target has no kernel for them.
    pub(in super::super) fn row_call(
        &self,
        group: &FusedGroup,
        space: &RowGroupDims,
    ) -> Result<Option<FusedCall>, LoweringError> {
        if !self.graph.target.blocks {
            return Ok(None);
        }
        let plan = self.context.plan;
        let dims = space.dims();
        let Some(program) = RowProgram::of(plan, (group, space), &dims) else { return Ok(None) };
        let all = |operands: &[Operand]| -> Result<Vec<Local>, LoweringError> {
            operands.iter().map(|o| self.local(o)).collect()
        };
        let (reads, writes) = (all(&program.reads)?, all(&program.writes)?);
        // A group that contradicts itself has no kernel; the lowering of its steps reports the error.
        let both: Vec<&Local> = reads.iter().chain(&writes).collect();
        let range = |dim| both.iter().find_map(|l| l.range(dim).ok().cloned());
        let ranges: Option<Vec<Range<usize>>> = dims.iter().map(|dim| range(*dim)).collect();
        let (Ok(()), Some(ranges)) = (self.context.check_aligned(&both, &[]), ranges) else {
            return Ok(None);
        };
        let mut operands = vec![];
        for local in &reads {
            let drawn = self.decisions.masks.drawn_by.get(&local.buf).copied();
            let Some(operand) = self.kernel_operand(local, &dims, drawn)? else { return Ok(None) };
            operands.push(operand);
        }
        let call = RowCall::new(&program.of, (&ranges, space.rows.len()), operands);
        let reads: Vec<Local> =
            reads.into_iter().filter(|l| !self.decisions.masks.drawn_by.contains_key(&l.buf)).collect();
        let given: Vec<(BufId, BufId)> =
            group.steps.iter().flat_map(|at| &plan.steps[*at].aliases).copied().collect();
        let donations: Vec<(usize, usize)> = (writes.iter().enumerate())
            .filter_map(|(to, out)| Some((reads.iter().position(|l| l.buf == first(&given, out.buf))?, to)))
            .collect();
        let kernel = |call: RowCall| Kernel::Rows(Arc::new(call.with_donations(&donations)));
        Ok(call.map(|call| FusedCall { kernel: kernel(call), reads, writes }))
    }
}

/// Whose storage a buffer has in the end, where each takes that of another.
fn first(given: &[(BufId, BufId)], mut buf: BufId) -> BufId {
    while let Some((from, _)) = given.iter().find(|(_, to)| *to == buf) {
        buf = *from;
    }
    buf
}
