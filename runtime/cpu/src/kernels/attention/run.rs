//! Attention on operands: a forward or a backward pass.

use super::super::{KernelError, Slice, SliceMut, check_in, check_out};
use super::output::SharedOut;
use super::prepare::AttentionKernel;
use super::tile::TileElement;
use super::{backward, forward};
use meshwright_exec::backend::RngState;
use meshwright_plan::DType;

impl AttentionKernel {
    /// Computes.
    ///
    /// # Errors
    /// If the operands are not what was prepared for.
    pub(crate) fn run(
        &self,
        reads: &[Slice<'_>],
        outs: &mut [SliceMut<'_>],
        rng: RngState,
    ) -> Result<(), KernelError> {
        if reads.len() != self.plan.reads.len() || outs.len() != self.plan.writes.len() {
            return Err(KernelError::Count { expected: self.plan.reads.len(), found: reads.len() });
        }
        for (slice, (access, tables)) in reads.iter().zip(self.plan.reads.iter().zip(&self.reads)) {
            check_in(slice, access.dtype.unwrap_or(self.plan.dtype), self.reach(access, tables))?;
        }
        for (out, (access, tables)) in outs.iter().zip(self.plan.writes.iter().zip(&self.writes)) {
            check_out(out, self.plan.dtype, self.reach(access, tables))?;
        }
        match self.plan.dtype {
            DType::F64 => self.results::<f64>(reads, outs, rng),
            _ => self.results::<f32>(reads, outs, rng),
        }
    }

    fn results<T: TileElement>(
        &self,
        reads: &[Slice<'_>],
        outs: &mut [SliceMut<'_>],
        rng: RngState,
    ) -> Result<(), KernelError> {
        let mut shared: Vec<SharedOut<T>> = vec![];
        for out in outs {
            let Some(x) = T::of_mut(out.reborrow()) else {
                return Err(KernelError::DType { expected: self.plan.dtype, found: out.dtype() });
            };
            x.fill(T::default());
            shared.push(SharedOut::new(x));
        }
        match self.operands.scale {
            Some(_) => backward::run(self, reads, &shared, rng),
            None => forward::run(self, reads, &shared, rng),
        }
    }
}
