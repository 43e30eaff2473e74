//! Random values of this device's block.

use super::level::{Level, multiversion};
use super::{KernelError, SliceMut, par};
use meshwright_plan::DType;
use meshwright_plan::random::{Distribution, Key, Truths, draw, draw_f32};
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
    /// The dim that counts examples.
    examples: Option<usize>,
    /// The dim along which only every so many-th element of the whole is one of these `sizes`: see [`RandomKernel::in_parts`].
    parts: Option<(usize, usize)>,
}

/// When values are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The step.
    pub step: u64,
    /// The index of a `repeat`.
    pub repeat: u32,
    /// The part of the batch that the step is at.
    pub part: usize,
}

/// What a device that draws by itself is to draw: element `i` of a dense block, whose position along each of `dims` is `p`, is
/// the one that is counted `first` + the sum of `p` times its stride.
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Draws {
    /// The stream at its moment.
    pub key: Key,
    /// The distribution.
    pub distribution: Distribution,
    /// The count of the first element, modulo 2^64 like all counts.
    pub first: u64,
    /// Size and stride of each dim of the block; dims that are counted as one are one.
    pub dims: Vec<(usize, u64)>,
}

/// Where each element of the whole is counted.
struct Counting {
    first: u64,
    /// How far the next one along each dim is.
    strides: Vec<u64>,
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
            examples: None,
            parts: None,
        })
    }

    /// The same where that dim counts examples.
    #[must_use]
    pub fn of_examples(self, examples: Option<usize>) -> RandomKernel {
        RandomKernel { examples, ..self }
    }

    /// The same where a step goes through dim `parts.0` in `parts.1` parts: what is drawn are elements `part`, `part + parts.1`, and so on, of
    /// a whole that has `parts.1` times as many.
    #[must_use]
    pub fn in_parts(self, parts: Option<(usize, usize)>) -> RandomKernel {
        RandomKernel { parts, ..self }
    }

    /// Type of what is drawn.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the block.
    pub fn shape(&self) -> Vec<usize> {
        self.ranges.iter().map(ExactSizeIterator::len).collect()
    }

    /// Draws under a seed, for a moment. With the number of the batch's first example, what an example gets depends on its own
    /// number, not on its place in the batch or on the batch's size.
    ///
    /// # Errors
    /// If the output is not of the dtype and length that was prepared for.
    pub fn run(
        &self,
        seed: u64,
        moment: Moment,
        first_example: Option<u64>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError> {
        super::check_out(&out, self.dtype, self.total)?;
        let (key, first, strides) = self.counted(seed, moment, first_example);
        let (d, counting) = (&self.distribution, Counting { first, strides });
        match out {
            SliceMut::F64(o) => self.fill(o, &counting, |i| draw(d, key, i)),
            SliceMut::F32(o) => self.fill(o, &counting, |i| draw_f32(d, key, i)),
            SliceMut::Bool(o) => self.rows(o, &counting, |first, step, line| {
                bernoulli(Level::best(), d, key, (first, step), line);
            }),
            other => return Err(KernelError::DType { expected: self.dtype, found: other.dtype() }),
        }
        Ok(())
    }

    /// What a device that draws by itself is to draw at a moment.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    pub fn draws(&self, seed: u64, moment: Moment, first_example: Option<u64>) -> Draws {
        let all = self.draws_by_dim(seed, moment, first_example);
        let mut dims: Vec<(usize, u64)> = vec![];
        for (size, stride) in all.dims {
            match dims.last_mut() {
                _ if size == 1 => {}
                Some(outer) if outer.1 == stride.wrapping_mul(size as u64) => *outer = (outer.0 * size, stride),
                _ => dims.push((size, stride)),
            }
        }
        Draws { dims, ..all }
    }

    /// The same with every dim on its own.
    #[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
    pub fn draws_by_dim(&self, seed: u64, moment: Moment, first_example: Option<u64>) -> Draws {
        let (key, mut first, strides) = self.counted(seed, moment, first_example);
        for (range, stride) in self.ranges.iter().zip(&strides) {
            first = first.wrapping_add((range.start as u64).wrapping_mul(*stride));
        }
        let dims = self.ranges.iter().map(ExactSizeIterator::len).zip(strides).collect();
        Draws { key, distribution: self.distribution, first, dims }
    }

    /// The stream of a step, the count of its first element, and how far the next one along each dim is.
    pub(super) fn counted(
        &self,
        seed: u64,
        Moment { step, repeat, part }: Moment,
        first_example: Option<u64>,
    ) -> (Key, u64, Vec<u64>) {
        let Counting { first, strides } = self.counting(first_example, part);
        (Key::of_step(seed, &self.stream, step).at(step as u32, repeat), first, strides)
    }

    /// What is drawn.
    pub(crate) fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    /// Row-major over the whole; or, example by example, row-major over the other dims.
    fn counting(&self, first_example: Option<u64>, part: usize) -> Counting {
        let mut strides = vec![0; self.sizes.len()];
        let by_example = first_example.and(self.examples);
        let (mut stride, mut first) = (1, 0);
        for (i, n) in self.sizes.iter().enumerate().rev().filter(|(i, _)| Some(*i) != by_example) {
            let parts = self.parts.filter(|(at, _)| *at == i).map_or(1, |(_, parts)| parts as u64);
            if parts > 1 {
                first = stride * part as u64;
            }
            strides[i] = stride * parts;
            stride *= *n as u64 * parts;
        }
        let Some(at) = by_example else { return Counting { first, strides } };
        strides[at] = stride;
        Counting { first: first_example.unwrap_or(0).wrapping_mul(stride), strides }
    }

    fn fill<T: Send>(&self, out: &mut [T], counting: &Counting, value: impl Fn(u64) -> T + Sync) {
        self.rows(out, counting, |first, step, line| {
            for (i, x) in line.iter_mut().enumerate() {
                *x = value(first.wrapping_add(i as u64 * step));
            }
        });
    }

    /// Calls `f(first, step, row)` for the rows of the block, with the count of the first element and the next.
    fn rows<T: Send>(&self, out: &mut [T], counting: &Counting, f: impl Fn(u64, u64, &mut [T]) + Sync) {
        if out.is_empty() {
            return;
        }
        let row = self.ranges.last().map_or(1, ExactSizeIterator::len);
        let step = counting.strides.last().copied().unwrap_or(1);
        par::parts(out, row, WEIGHT, &|base, part: &mut [T]| {
            for (k, line) in part.chunks_mut(row).enumerate() {
                f(self.first(counting, base / row + k), step, line);
            }
        });
    }

    /// The count of the first element of a row of the block.
    fn first(&self, counting: &Counting, row: usize) -> u64 {
        let Some((last, outer)) = self.ranges.split_last() else { return counting.first };
        let mut rest = row;
        let mut first = counting.first.wrapping_add(last.start as u64 * counting.strides[outer.len()]);
        for (stride, r) in counting.strides.iter().zip(outer).rev() {
            first = first.wrapping_add((r.start + rest % r.len()) as u64 * stride);
            rest /= r.len();
        }
        first
    }
}

/// Truth values of a stream from one count on, in steps; of another distribution whether each is other than 0.
pub(super) fn bernoulli(level: Level, of: &Distribution, key: Key, (first, step): (u64, u64), out: &mut [u8]) {
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
