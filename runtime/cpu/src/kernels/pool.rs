//! Folding what windows cover, and the ways back.

use super::convolve::{ConvolveRow, Sliding, rows};
use super::data::Element;
use super::{KernelError, Slice, SliceMut, par};
use meshwright_plan::{DType, Monoid};

/// The computation at each position, or at each element in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolWork {
    /// `out[n] = fold of input[i]`.
    Fold(Monoid),
    /// `out[i] = sum of input[n]`.
    Spread,
    /// The tap of each position that holds the extreme; of equal ones the first.
    Tap(Monoid),
    /// `out[i] = sum of values[n]` over the positions whose tap meets `i`.
    Choose,
}

/// Dims that do not slide: length, strides in source and destination.
pub type Plain = (usize, [usize; 2]);

/// A prepared pool.
#[derive(Clone, Debug)]
pub struct PoolKernel {
    work: PoolWork,
    dtype: DType,
    /// Offsets of everything that does not slide, but for the innermost stretch.
    outer: Vec<[usize; 2]>,
    /// Elements that lie side by side in source and destination.
    inner: usize,
    /// Rows of one element or position each.
    rows: Vec<ConvolveRow>,
    /// Offset of each position or element of the source.
    source: Vec<usize>,
    /// Elements of source and destination.
    elements: [usize; 2],
    /// Elements of the destination that work is cut at; all where it cannot be cut.
    unit: usize,
}

/// An element that is folded.
trait Poolable: Element + PartialOrd + std::ops::AddAssign {
    const LEAST: Self;
    const GREATEST: Self;
}

impl Poolable for f32 {
    const LEAST: f32 = f32::NEG_INFINITY;
    const GREATEST: f32 = f32::INFINITY;
}

impl Poolable for f64 {
    const LEAST: f64 = f64::NEG_INFINITY;
    const GREATEST: f64 = f64::INFINITY;
}

/// Whether `v` replaces `old`: it is beyond it, or it is the first that is not a number.
#[inline(always)]
#[allow(clippy::eq_op, reason = "what is not equal to itself is no number")]
fn beyond<T: Poolable>(max: bool, v: T, old: T) -> bool {
    (if max { v > old } else { v < old }) || (v != v && old == old)
}

impl PoolKernel {
    /// Prepares. `plain` are the dims that do not slide, in the destination's order; `slides` the dims that do, with strides of
    /// elements and positions at 0 and 2. `elements` are the lengths of source and destination.
    ///
    /// # Errors
    /// If the dtype is not a float, or the fold is another than sum, max and min.
    pub fn new(
        work: PoolWork,
        dtype: DType,
        plain: &[Plain],
        slides: &[Sliding],
        elements: [usize; 2],
    ) -> Result<PoolKernel, KernelError> {
        let known = match work {
            PoolWork::Fold(m) => matches!(m, Monoid::Sum | Monoid::Max | Monoid::Min),
            PoolWork::Tap(m) => matches!(m, Monoid::Max | Monoid::Min),
            PoolWork::Spread | PoolWork::Choose => true,
        };
        if !known || !dtype.is_float() {
            return Err(KernelError::Unsupported(format!("{work:?} of {dtype}")));
        }
        let back = matches!(work, PoolWork::Spread | PoolWork::Choose);
        let mut source = vec![0];
        let mut table = Vec::new();
        for s in slides {
            let (len, from, to) = if back {
                (s.positions.len(), s.strides[2], s.strides[0])
            } else {
                (s.elements.len(), s.strides[0], s.strides[2])
            };
            source = source.iter().flat_map(|o| (0..len).map(move |i| o + i * from)).collect();
            let sweeps = if back { s.over_elements() } else { s.over_positions() };
            table.push((sweeps, to, s.taps, len));
        }
        let mut outer = plain.to_vec();
        // Dims that are contiguous in source and destination are merged.
        let mut inner = 1;
        outer.retain(|d| d.0 != 1);
        while let Some((len, _)) = outer.last().filter(|d| d.1 == [inner, inner]).copied() {
            inner *= len;
            outer.pop();
        }
        let first = plain.first().filter(|d| d.1[1] * d.0 == elements[1]);
        let mut places = vec![[0, 0]];
        for (len, [from, to]) in &outer {
            places = places
                .iter()
                .flat_map(|p| (0..*len).map(move |i| [p[0] + i * from, p[1] + i * to]))
                .collect();
        }
        places.sort_by_key(|p| p[1]);
        Ok(PoolKernel {
            work,
            dtype,
            outer: places,
            inner,
            rows: rows(&table),
            source,
            elements,
            unit: first
                .filter(|d| d.1[1] > inner || d.1[1] == inner && inner > 1)
                .map_or(elements[1], |d| d.1[1]),
        })
    }

    /// Runs it. [`PoolWork::Choose`] reads taps first and then values; all others the input alone.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(
        &self,
        input: Slice<'_>,
        values: Option<Slice<'_>>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError> {
        let (tap, choose) = (matches!(self.work, PoolWork::Tap(_)), self.work == PoolWork::Choose);
        super::check_in(&input, if choose { DType::I32 } else { self.dtype }, self.elements[0])?;
        super::check_out(&out, if tap { DType::I32 } else { self.dtype }, self.elements[1])?;
        if let Some(v) = &values {
            super::check_in(v, self.dtype, self.elements[0])?;
        }
        match (input, values, out) {
            (Slice::F32(x), None, SliceMut::F32(out)) => self.fold(x, out),
            (Slice::F64(x), None, SliceMut::F64(out)) => self.fold(x, out),
            (Slice::F32(x), None, SliceMut::I32(out)) => self.taps(x, out),
            (Slice::F64(x), None, SliceMut::I32(out)) => self.taps(x, out),
            (Slice::I32(t), Some(Slice::F32(v)), SliceMut::F32(out)) => self.choose(t, v, out),
            (Slice::I32(t), Some(Slice::F64(v)), SliceMut::F64(out)) => self.choose(t, v, out),
            _ => {
                return Err(KernelError::Count {
                    expected: 1 + usize::from(choose),
                    found: usize::from(!choose) + 1,
                });
            }
        }
        Ok(())
    }

    /// Calls `f(row, from, out)` for each stretch of the destination: where the source begins, and the stretch.
    fn each<T: Send>(&self, out: &mut [T], f: &(impl Fn(&ConvolveRow, usize, &mut [T]) + Sync)) {
        if out.is_empty() {
            return;
        }
        let weight = self.rows.iter().map(|r| r.taps.len()).max().unwrap_or(1);
        par::parts(out, self.unit, weight, &|base, part| {
            let end = base + part.len();
            let first = self.outer.partition_point(|p| p[1] < base);
            for [from, to] in self.outer[first..].iter().take_while(|p| p[1] < end) {
                for row in &self.rows {
                    let at = to + row.to - base;
                    f(row, *from, &mut part[at..at + self.inner]);
                }
            }
        });
    }

    fn fold<T: Poolable>(&self, x: &[T], out: &mut [T]) {
        let monoid = if let PoolWork::Fold(m) = self.work { m } else { Monoid::Sum };
        let start = match monoid {
            Monoid::Max => T::LEAST,
            Monoid::Min => T::GREATEST,
            _ => T::default(),
        };
        self.each(out, &|row, from, out| {
            out.fill(start);
            for (_, n) in &row.taps {
                let x = &x[from + self.source[*n]..][..out.len()];
                let pairs = out.iter_mut().zip(x);
                match monoid {
                    Monoid::Max => pairs.for_each(|(o, x)| *o = if beyond(true, *x, *o) { *x } else { *o }),
                    Monoid::Min => pairs.for_each(|(o, x)| *o = if beyond(false, *x, *o) { *x } else { *o }),
                    _ => pairs.for_each(|(o, x)| *o += *x),
                }
            }
        });
    }

    fn taps<T: Poolable>(&self, x: &[T], out: &mut [i32]) {
        let max = self.work == PoolWork::Tap(Monoid::Max);
        self.each(out, &|row, from, out| {
            out.fill(row.taps.first().map_or(0, |t| t.0 as i32));
            for (k, out) in out.iter_mut().enumerate() {
                let mut best: Option<T> = None;
                for (tap, n) in &row.taps {
                    let v = x[from + self.source[*n] + k];
                    if best.is_none_or(|b| beyond(max, v, b)) {
                        (best, *out) = (Some(v), *tap as i32);
                    }
                }
            }
        });
    }

    fn choose<T: Poolable>(&self, taps: &[i32], values: &[T], out: &mut [T]) {
        self.each(out, &|row, from, out| {
            out.fill(T::default());
            for (tap, n) in &row.taps {
                let at = from + self.source[*n];
                let (taps, values) = (&taps[at..at + out.len()], &values[at..at + out.len()]);
                for ((o, t), v) in out.iter_mut().zip(taps).zip(values) {
                    if *t == *tap as i32 {
                        *o += *v;
                    }
                }
            }
        });
    }
}
