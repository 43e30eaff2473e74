//! Fused groups as kernels. A new kind of kernel is a row of [`Lower::fused_call`].

use super::lower::Lower;
use crate::decisions::fused::{FusedGroup, FusedKernel};
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::lowering::local::Local;
use crate::slot::TensorSlot;
use crate::stored::{extents, stored_as};

/// A fused kernel with its operands in memory, and its results.
pub(super) struct FusedCall {
    pub kernel: Kernel,
    pub reads: Vec<Local>,
    pub writes: Vec<Local>,
}

impl Lower<'_> {
    /// The call of a group's kernel; none if the target has no such kernel.
    fn fused_call(&self, group: &FusedGroup) -> Result<Option<FusedCall>, LoweringError> {
        match &group.kernel {
            FusedKernel::Rows(space) => self.row_call(group, space),
        }
    }

    /// Whether the target has a kernel for a group.
    pub(crate) fn fuses(&self, group: &FusedGroup) -> bool {
        matches!(self.fused_call(group), Ok(Some(_)))
    }

    /// Records the kernel of a group.
    pub(crate) fn fused(&mut self, group: &FusedGroup) -> Result<(), LoweringError> {
        let Some(FusedCall { kernel, reads, writes }) = self.fused_call(group)? else {
            return Err(LoweringError::Plan("there is no kernel for a fused group".into()));
        };
        let read = reads.iter().map(|local| self.read(local).val).collect();
        let outs = writes.iter().map(|out| (extents(&out.shape), stored_as(out.dtype)));
        let made = self.graph.kernel(kernel, read, outs);
        for (out, val) in writes.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
        Ok(())
    }
}
