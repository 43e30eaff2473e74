//! Ranges of one dim copied from some arrays to another, whose other dims are the same: shifts, joins and cuts of dims.

use super::{KernelError, Slice, SliceMut};
use meshwright_device::collective::pack::StridedView;
use meshwright_plan::DType;
use std::ops::Range;

/// One source: `range` of the dim that `from` goes around goes to position `at` of the result's.
#[derive(Clone, Debug)]
pub(crate) struct CopySource {
    pub(crate) from: StridedView,
    pub(crate) range: Range<usize>,
    pub(crate) at: usize,
    /// Whether the last of the range comes first.
    pub(crate) backward: bool,
}

/// A prepared copy of ranges of a dim; the rest of the result gets a fill.
#[derive(Clone, Debug)]
pub struct BlockCopy {
    dtype: DType,
    out: StridedView,
    sources: Vec<CopySource>,
    fill: f64,
}

impl BlockCopy {
    /// Copies each source's range to its place in the array that `out` goes around.
    ///
    /// # Errors
    /// If a range does not lie in both, or their other dims differ in size.
    pub(crate) fn new(
        dtype: DType,
        out: StridedView,
        sources: Vec<CopySource>,
        fill: f64,
    ) -> Result<BlockCopy, KernelError> {
        for s in &sources {
            let length = s.range.len();
            let inside = length == 0 || s.range.end <= s.from.size && s.at + length <= out.size;
            let alike = (s.from.outer, s.from.inner) == (out.outer, out.inner) || out.block(out.size) == 0;
            if !inside || !alike {
                return Err(KernelError::Unsupported(format!("a copy of {s:?} to {out:?}")));
            }
        }
        Ok(BlockCopy { dtype, out, sources, fill })
    }

    /// Copies from each source in turn.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, from: &[Slice<'_>], mut out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_out(&out, self.dtype, self.out.block(self.out.size))?;
        if self.sources.iter().map(|s| s.range.len()).sum::<usize>() < self.out.size {
            match &mut out {
                SliceMut::F64(o) => o.fill(self.fill),
                SliceMut::F32(o) => o.fill(self.fill as f32),
                SliceMut::BF16(o) => o.fill(half::bf16::from_f64(self.fill)),
                SliceMut::F16(o) => o.fill(half::f16::from_f64(self.fill)),
                SliceMut::I32(o) => o.fill(self.fill as i32),
                SliceMut::U8(o) => o.fill(self.fill as u8),
                SliceMut::Bool(o) => o.fill(u8::from(self.fill != 0.0)),
                SliceMut::PairF32(_) | SliceMut::PairF64(_) => {}
            }
        }
        for (s, from) in self.sources.iter().zip(from) {
            super::check_in(from, self.dtype, s.from.block(s.from.size))?;
            match (from, &mut out) {
                (Slice::F64(f), SliceMut::F64(o)) => self.copy(s, f, o),
                (Slice::F32(f), SliceMut::F32(o)) => self.copy(s, f, o),
                (Slice::BF16(f), SliceMut::BF16(o)) => self.copy(s, f, o),
                (Slice::F16(f), SliceMut::F16(o)) => self.copy(s, f, o),
                (Slice::I32(f), SliceMut::I32(o)) => self.copy(s, f, o),
                (Slice::U8(f), SliceMut::U8(o)) => self.copy(s, f, o),
                (Slice::Bool(f), SliceMut::Bool(o)) => self.copy(s, f, o),
                _ => {
                    return Err(KernelError::Unsupported(format!("a copy of a range of {}", self.dtype)));
                }
            }
        }
        Ok(())
    }

    fn copy<T: Copy>(&self, s: &CopySource, from: &[T], out: &mut [T]) {
        let run = s.range.len() * self.out.inner;
        if run == 0 {
            return;
        }
        let inner = self.out.inner;
        for o in 0..self.out.outer {
            let f = (o * s.from.size + s.range.start) * s.from.inner;
            let t = (o * self.out.size + s.at) * self.out.inner;
            let (from, out) = (&from[f..f + run], &mut out[t..t + run]);
            if s.backward {
                let pieces = out.chunks_exact_mut(inner).zip(from.chunks_exact(inner).rev());
                pieces.for_each(|(out, from)| out.copy_from_slice(from));
            } else {
                out.copy_from_slice(from);
            }
        }
    }
}
