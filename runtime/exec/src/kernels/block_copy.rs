//! A range of one dim copied from one array to another, whose other dims are the same: shifts, cuts and joins of dims.

use super::{KernelError, Slice, SliceMut};
use crate::pack::Around;
use meshwright_plan::DType;
use std::ops::Range;

/// A prepared copy of a range of a dim; the rest of the result gets a fill.
#[derive(Clone, Debug)]
pub struct BlockCopy {
    dtype: DType,
    from: Around,
    out: Around,
    range: Range<usize>,
    at: usize,
    fill: f64,
}

impl BlockCopy {
    /// Copies `range` of the dim that `from` goes around to position `at` of the one that `out` goes around.
    ///
    /// # Errors
    /// If the range does not lie in both, or their other dims differ in size.
    pub(crate) fn new(
        dtype: DType,
        from: Around,
        out: Around,
        range: Range<usize>,
        at: usize,
        fill: f64,
    ) -> Result<BlockCopy, KernelError> {
        let length = range.len();
        let inside = length == 0 || range.end <= from.size && at + length <= out.size;
        if !inside || (from.outer, from.inner) != (out.outer, out.inner) && out.block(out.size) > 0 {
            return Err(KernelError::Unsupported(format!(
                "a copy of {range:?} of {from:?} to {at} of {out:?}"
            )));
        }
        Ok(BlockCopy { dtype, from, out, range, at, fill })
    }

    /// Copies.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, from: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&from, self.dtype, self.from.block(self.from.size))?;
        super::check_out(&out, self.dtype, self.out.block(self.out.size))?;
        match (from, out) {
            (Slice::F64(f), SliceMut::F64(o)) => self.copy(f, o, self.fill),
            (Slice::F32(f), SliceMut::F32(o)) => self.copy(f, o, self.fill as f32),
            (Slice::I32(f), SliceMut::I32(o)) => self.copy(f, o, self.fill as i32),
            (Slice::U8(f), SliceMut::U8(o)) => self.copy(f, o, self.fill as u8),
            (Slice::Bool(f), SliceMut::Bool(o)) => self.copy(f, o, u8::from(self.fill != 0.0)),
            _ => {
                return Err(KernelError::Unsupported(format!("a copy of a range of {}", self.dtype)));
            }
        }
        Ok(())
    }

    fn copy<T: Copy>(&self, from: &[T], out: &mut [T], fill: T) {
        let run = self.range.len() * self.out.inner;
        if self.range.len() < self.out.size {
            out.fill(fill);
        }
        if run == 0 {
            return;
        }
        for o in 0..self.out.outer {
            let f = (o * self.from.size + self.range.start) * self.from.inner;
            let t = (o * self.out.size + self.at) * self.out.inner;
            out[t..t + run].copy_from_slice(&from[f..f + run]);
        }
    }
}
