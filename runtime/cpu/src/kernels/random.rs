//! Random values of this device's block, drawn by the host.

use super::instruction_set::{Level, multiversion};
use super::{KernelError, SliceMut, par};
pub use meshwright_device::kernels::random::{Counting, DrawPoint, RandomBlock};
use meshwright_plan::random::{Distribution, Key, Truths, draw, draw_f32};

/// Cost of a drawn element, in copied elements.
const WEIGHT: usize = 8;

/// A block that the host draws.
pub trait DrawBlock {
    /// Draws under a seed, for a moment. With the number of the batch's first example, what an example gets depends on its own
    /// number, not on its place in the batch or on the batch's size.
    ///
    /// # Errors
    /// If the output is not of the dtype and length that was prepared for.
    fn run(
        &self,
        seed: u64,
        moment: DrawPoint,
        first_example: Option<u64>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError>;
}

impl DrawBlock for RandomBlock {
    fn run(
        &self,
        seed: u64,
        moment: DrawPoint,
        first_example: Option<u64>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError> {
        super::check_out(&out, self.dtype(), self.elements())?;
        let (key, first, strides) = self.counted(seed, moment, first_example);
        let (d, counting) = (self.distribution(), Counting { first, strides });
        match out {
            SliceMut::F64(o) => fill(self, o, &counting, |i| draw(d, key, i)),
            SliceMut::F32(o) => fill(self, o, &counting, |i| draw_f32(d, key, i)),
            SliceMut::Bool(o) => rows(self, o, &counting, |first, step, line| {
                bernoulli(Level::best(), d, key, (first, step), line);
            }),
            other => return Err(KernelError::DType { expected: self.dtype(), found: other.dtype() }),
        }
        Ok(())
    }
}

fn fill<T: Send>(of: &RandomBlock, out: &mut [T], counting: &Counting, value: impl Fn(u64) -> T + Sync) {
    rows(of, out, counting, |first, step, line| {
        for (i, x) in line.iter_mut().enumerate() {
            *x = value(first.wrapping_add(i as u64 * step));
        }
    });
}

/// Calls `f(first, step, row)` for the rows of the block, with the count of the first element and the next.
fn rows<T: Send>(
    of: &RandomBlock,
    out: &mut [T],
    counting: &Counting,
    f: impl Fn(u64, u64, &mut [T]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let row = of.row();
    let step = counting.strides.last().copied().unwrap_or(1);
    let positions = of.positions_of_row();
    let start = positions.first().map_or(0, |first| first.start);
    par::parts(out, row, WEIGHT, &|base, part: &mut [T]| {
        for (k, mut line) in part.chunks_mut(row).enumerate() {
            let first = of.first_of_row(counting, base / row + k);
            for range in &positions {
                let from = (range.start as u64).wrapping_sub(start as u64).wrapping_mul(step);
                let (now, later) = line.split_at_mut(range.len());
                f(first.wrapping_add(from), step, now);
                line = later;
            }
        }
    });
}

/// Truth values of a stream from one count on, in steps; of another distribution whether each is other than 0.
pub(super) fn bernoulli(
    level: Level,
    of: &Distribution,
    key: Key,
    (first, step): (u64, u64),
    out: &mut [u8],
) {
    match of {
        Distribution::Bernoulli { rate } => truths(level, key, Truths::of(*rate), first, step, out),
        other => {
            for (i, x) in out.iter_mut().enumerate() {
                *x = u8::from(draw(other, key, first.wrapping_add(i as u64 * step)) != 0.0);
            }
        }
    }
}

/// Counters that are computed at a time, of elements that follow each other; and elements of others.
const COUNTERS: usize = 16;
const LANES: usize = 64;

multiversion! {
    fn truths[](key: Key, of: Truths, first: u64, step: u64, out: &mut [u8]) {
        let each = of.to_a_counter;
        let mut drawn = [0; 8 * COUNTERS];
        // The first of a row may be in the middle of what a counter gives.
        let begun = if step == 1 { first % each } else { 0 };
        let mut at = first.wrapping_sub(begun);
        let (mut skip, mut out) = (begun as usize, out);
        while !out.is_empty() {
            let many = match step {
                1 => {
                    key.truths_in_a_row::<COUNTERS>(of, at / each, &mut drawn);
                    COUNTERS * each as usize
                }
                _ => {
                    let mut lanes = [0; LANES];
                    key.truths(of, at, step, &mut lanes);
                    drawn[..LANES].copy_from_slice(&lanes);
                    LANES
                }
            };
            let n = out.len().min(many - skip);
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&drawn[skip..skip + n]);
            (out, skip, at) = (later, 0, at.wrapping_add(step.wrapping_mul(many as u64)));
        }
    }
}
