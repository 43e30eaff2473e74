//! Random values of this device's block.

use super::{KernelError, SliceMut, par};
use meshwright_plan::DType;
use meshwright_plan::random::{Distribution, Key, draw, draw_f32};
use std::ops::Range;

/// An element costs as much as so many of a copy.
const WEIGHT: usize = 8;

/// A prepared drawing of one block of a whole.
#[derive(Clone, Debug)]
pub struct RandomKernel {
    distribution: Distribution,
    stream: String,
    dtype: DType,
    /// Size of each dim of the whole.
    sizes: Vec<usize>,
    /// What of each dim this device holds.
    ranges: Vec<Range<usize>>,
    total: usize,
}

impl RandomKernel {
    /// Prepares to draw the block `ranges` of a value of `sizes`; elements are counted row-major over the whole.
    ///
    /// # Errors
    /// If sizes and ranges do not fit, or the dtype is not one of the distribution.
    pub fn new(
        stream: &str,
        distribution: Distribution,
        dtype: DType,
        sizes: &[usize],
        ranges: &[Range<usize>],
    ) -> Result<RandomKernel, KernelError> {
        if sizes.len() != ranges.len() {
            return Err(KernelError::Rank { expected: sizes.len(), found: ranges.len() });
        }
        if let Some((n, r)) = sizes.iter().zip(ranges).find(|(n, r)| r.end > **n || r.start > r.end) {
            return Err(KernelError::Unsupported(format!("{r:?} of a dim of {n} is to be drawn")));
        }
        if (dtype == DType::Bool) != matches!(distribution, Distribution::Bernoulli { .. })
            || !(dtype == DType::Bool || dtype.is_float())
        {
            return Err(KernelError::Unsupported(format!("{distribution:?} has no values of {dtype}")));
        }
        Ok(RandomKernel {
            distribution,
            stream: stream.into(),
            dtype,
            sizes: sizes.to_vec(),
            ranges: ranges.to_vec(),
            total: ranges.iter().map(ExactSizeIterator::len).product(),
        })
    }

    /// Type of what is drawn.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the block.
    pub fn shape(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }

    /// Draws for a step under a seed.
    ///
    /// # Errors
    /// If the output is not of the dtype and length that was prepared for.
    pub fn run(&self, seed: u64, step: u64, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_out(&out, self.dtype, self.total)?;
        let key = Key::of_step(seed, &self.stream, step);
        let d = &self.distribution;
        match out {
            SliceMut::F64(o) => self.fill(o, |i| draw(d, key, i)),
            SliceMut::F32(o) => self.fill(o, |i| draw_f32(d, key, i)),
            SliceMut::Bool(o) => self.fill(o, |i| u8::from(draw(d, key, i) != 0.0)),
            other => return Err(KernelError::DType { expected: self.dtype, found: other.dtype() }),
        }
        Ok(())
    }

    fn fill<T: Send>(&self, out: &mut [T], value: impl Fn(u64) -> T + Sync) {
        if out.is_empty() {
            return;
        }
        let row = self.ranges.last().map_or(1, ExactSizeIterator::len);
        par::parts(out, row, WEIGHT, &|base, part: &mut [T]| {
            for (k, line) in part.chunks_mut(row).enumerate() {
                let first = self.first(base / row + k);
                for (i, x) in line.iter_mut().enumerate() {
                    *x = value(first + i as u64);
                }
            }
        });
    }

    /// Position in the whole of the first element of a row of the block.
    fn first(&self, row: usize) -> u64 {
        let Some((last, outer)) = self.ranges.split_last() else { return 0 };
        let (mut rest, mut stride) = (row, self.sizes[outer.len()] as u64);
        let mut first = last.start as u64;
        for (n, r) in self.sizes.iter().zip(outer).rev() {
            first += (r.start + rest % r.len()) as u64 * stride;
            rest /= r.len();
            stride *= *n as u64;
        }
        first
    }
}
