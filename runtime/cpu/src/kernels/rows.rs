//! Rows along one dim, for softmax and functions like it. Several rows are computed together, so that short rows use vectors too;
//! rows that are not contiguous are gathered into a scratch buffer first.

use super::data::Element;
use super::fold::{self, MaxF32, MaxF64};
use super::instruction_set::{Level, multiversion};
use super::math::Real;
use super::strided_walk::{Walk, copy_strided, stretches};
use super::{Access, Arg, KernelError, SliceMut, par};
use meshwright_plan::DType;
use std::cell::RefCell;

/// Elements of the rows that are taken at a time (a single row may be longer).
const BLOCK: usize = 2048;

/// Buffers of a thread: gathered rows, and numbers of each of them.
#[derive(Default)]
pub(super) struct Scratch<T> {
    pub(super) rows: Vec<T>,
    pub(super) copy: Vec<T>,
    pub(super) shift: Vec<T>,
    pub(super) sum: Vec<T>,
    pub(super) scale: Vec<T>,
    pub(super) label: Vec<i32>,
}

pub(super) trait Scratched: Real {
    fn scratch<R>(f: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
    fn greatest(level: Level, x: &[Self]) -> Self;
}

macro_rules! scratched {
    ($t:ident, $max:ident) => {
        impl Scratched for $t {
            fn scratch<R>(f: impl FnOnce(&mut Scratch<$t>) -> R) -> R {
                thread_local! {
                    static SCRATCH: RefCell<Scratch<$t>> = RefCell::default();
                }
                SCRATCH.with_borrow_mut(f)
            }
            fn greatest(level: Level, x: &[$t]) -> $t {
                fold::row::<$max>(level, x)
            }
        }
    };
}
scratched!(f32, MaxF32);
scratched!(f64, MaxF64);

multiversion! {
    fn exponentials[T: Real](x: &mut [T]) {
        for x in x {
            *x = x.exp::<FMA>();
        }
    }
}

/// Longer rows are summed in halves: rounding errors of a lane grow with its number of additions.
const LONGEST_SUM: usize = 16384;

/// The sum of a row, in an order that its length alone decides.
fn sum<T: Real>(level: Level, x: &[T]) -> T {
    if x.len() <= LONGEST_SUM {
        return sum_lanes(level, x);
    }
    let (low, high) = x.split_at(x.len() / 2);
    sum(level, low) + sum(level, high)
}

multiversion! {
    fn sum_lanes[T: Real](x: &[T]) -> T {
        let mut acc = [T::default(); 16];
        let mut chunks = x.chunks_exact(16);
        for chunk in &mut chunks {
            for (acc, x) in acc.iter_mut().zip(chunk) {
                *acc += *x;
            }
        }
        let mut rest = T::default();
        for x in chunks.remainder() {
            rest += *x;
        }
        let mut n = 16;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                let other = acc[i + n];
                acc[i] += other;
            }
        }
        acc[0] + rest
    }
}

multiversion! {
    /// `x = x * factor - shift`, with one of each a row.
    pub(super) fn affine[T: Real](x: &mut [T], classes: usize, factor: &[T], shift: &[T]) {
        for (row, (f, s)) in x.chunks_exact_mut(classes).zip(factor.iter().zip(shift)) {
            for x in row {
                *x = *x * *f - *s;
            }
        }
    }
}

multiversion! {
    /// `x = x / divisor`, with one a row.
    pub(super) fn divide[T: Real](x: &mut [T], classes: usize, divisor: &[T]) {
        for (row, d) in x.chunks_exact_mut(classes).zip(divisor) {
            for x in row {
                *x = *x / *d;
            }
        }
    }
}

multiversion! {
    /// `x = x - shift`, with one a row.
    fn subtract[T: Real](x: &mut [T], classes: usize, shift: &[T]) {
        for (row, s) in x.chunks_exact_mut(classes).zip(shift) {
            for x in row {
                *x -= *s;
            }
        }
    }
}

/// Each row becomes `exp(x - shift)`; gives the shifts and the rows' sums. The shift is the greatest element; where that is
/// infinite the sum is NaN.
pub(super) fn shifted_exponentials<T: Scratched>(
    level: Level,
    x: &mut [T],
    classes: usize,
    shift: &mut Vec<T>,
    sums: &mut Vec<T>,
    rows: usize,
) {
    shift.clear();
    sums.clear();
    if classes == 0 {
        shift.resize(rows, T::default());
        sums.resize(rows, T::default());
        return;
    }
    shift.extend(x.chunks_exact(classes).map(|row| T::greatest(level, row)));
    subtract(level, x, classes, shift);
    exponentials(level, x);
    sums.extend(x.chunks_exact(classes).map(|row| sum(level, row)));
}

fn floats(dtype: DType) -> Result<(), KernelError> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(KernelError::Unsupported(format!("an exponential of {dtype}")))
}

pub(super) fn labels(label: &Access) -> Result<(), KernelError> {
    if label.dtype == DType::I32 {
        return Ok(());
    }
    Err(KernelError::DType { expected: DType::I32, found: label.dtype })
}

/// A number for each row, where rows are counted in row-major order.
#[derive(Clone, Debug)]
pub(super) struct PerRow {
    pub(super) walk: Walk,
    pub(super) reach: usize,
}

impl PerRow {
    pub(super) fn new(rows: &[usize], access: &Access) -> Result<PerRow, KernelError> {
        Ok(PerRow { walk: Walk::new(rows, &[access])?, reach: access.reach(rows) })
    }

    pub(super) fn read<T: Element>(&self, from: &[T], start: usize, n: usize, into: &mut Vec<T>) {
        into.resize(n, T::default());
        let stride = self.walk.inner_stride(0);
        stretches(&self.walk.shape, &self.walk.strides[0], self.walk.offsets[0], start, n, |i, at, len| {
            copy_strided(&mut into[i..i + len], from, at, stride);
        });
    }
}

/// Rows along one dim of a dense array, changed in place.
#[derive(Clone, Debug)]
pub(super) struct InPlace {
    pub(super) dtype: DType,
    pub(super) classes: usize,
    pub(super) inner: usize,
    pub(super) total: usize,
    pub(super) level: Level,
}

impl InPlace {
    pub(super) fn new(dtype: DType, shape: &[usize], dim: usize) -> Result<InPlace, KernelError> {
        floats(dtype)?;
        let Some(classes) = shape.get(dim) else {
            return Err(KernelError::Rank { expected: shape.len(), found: dim });
        };
        Ok(InPlace {
            dtype,
            classes: *classes,
            inner: shape[dim + 1..].iter().product(),
            total: shape.iter().product(),
            level: Level::best(),
        })
    }

    pub(super) fn check(&self, input: &Arg<'_>, out: &SliceMut<'_>) -> Result<(), KernelError> {
        super::check_out(out, self.dtype, self.total)?;
        match input {
            Arg::Slice(s) => super::check_in(s, self.dtype, self.total),
            Arg::Out(0) => Ok(()),
            Arg::Out(k) => Err(KernelError::Count { expected: 1, found: k + 1 }),
        }
    }

    /// Calls `f(first row, rows, buffers)` for all rows, a few at a time, which it changes from input to output.
    pub(super) fn run<T: Scratched>(
        &self,
        input: Option<&[T]>,
        out: &mut [T],
        f: impl Fn(usize, &mut [T], &mut Scratch<T>) + Sync,
    ) {
        let (n, inner) = (self.classes, self.inner);
        if self.total == 0 {
            return;
        }
        let few = (BLOCK / n).max(1);
        if inner == 1 {
            par::parts(out, few * n, 4, &|base, part| {
                T::scratch(|s| {
                    for (k, rows) in part.chunks_mut(few * n).enumerate() {
                        let first = base / n + k * few;
                        if let Some(x) = input {
                            rows.copy_from_slice(&x[first * n..][..rows.len()]);
                        }
                        f(first, rows, s);
                    }
                });
            });
            return;
        }
        par::parts(out, n * inner, 4, &|base, part| {
            T::scratch(|s| {
                let mut rows = std::mem::take(&mut s.rows);
                for (k, plane) in part.chunks_exact_mut(n * inner).enumerate() {
                    if let Some(x) = input {
                        plane.copy_from_slice(&x[base + k * n * inner..][..n * inner]);
                    }
                    for j0 in (0..inner).step_by(few) {
                        let w = few.min(inner - j0);
                        rows.resize(w * n, T::default());
                        for c in 0..n {
                            for j in 0..w {
                                rows[j * n + c] = plane[c * inner + j0 + j];
                            }
                        }
                        f((base / (n * inner) + k) * inner + j0, &mut rows, s);
                        for c in 0..n {
                            for j in 0..w {
                                plane[c * inner + j0 + j] = rows[j * n + c];
                            }
                        }
                    }
                }
                s.rows = rows;
            });
        });
    }

    pub(super) fn softmax<T: Scratched>(&self, rows: &mut [T], s: &mut Scratch<T>) {
        let n = rows.len() / self.classes;
        shifted_exponentials(self.level, rows, self.classes, &mut s.shift, &mut s.sum, n);
        divide(self.level, rows, self.classes, &s.sum);
    }

    pub(super) fn log_softmax<T: Scratched>(&self, rows: &mut [T], s: &mut Scratch<T>) {
        s.copy.clear();
        s.copy.extend_from_slice(rows);
        let n = rows.len() / self.classes;
        shifted_exponentials(self.level, &mut s.copy, self.classes, &mut s.shift, &mut s.sum, n);
        // In two steps, since a large shift would drown the logarithm.
        subtract(self.level, rows, self.classes, &s.shift);
        s.sum.iter_mut().for_each(|x| *x = logarithm(*x));
        subtract(self.level, rows, self.classes, &s.sum);
    }
}

/// The logarithm of a row's sum, computed once for each row. Its bits are the same on all machines.
pub(super) fn logarithm<T: Real>(x: T) -> T {
    x.log::<false>()
}

/// The input's elements, unless they stand in the output.
pub(super) fn own<'a, T: Element>(input: Arg<'a>) -> Option<&'a [T]> {
    match input {
        Arg::Slice(s) => T::of(s),
        Arg::Out(_) => None,
    }
}

/// A function that gives one number for each row; rows may have any strides.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) dtype: DType,
    pub(super) row: PerRow,
    pub(super) classes: usize,
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) reach: usize,
    pub(super) level: Level,
}

impl Rows {
    pub(super) fn new(rows: &[usize], classes: usize, input: &Access) -> Result<Rows, KernelError> {
        floats(input.dtype)?;
        let shape = [rows, &[classes]].concat();
        input.check_rank(&shape)?;
        let (strides, step) = input.strides.split_at(rows.len());
        let row = Access { dtype: input.dtype, offset: input.offset, strides: strides.to_vec() };
        Ok(Rows {
            dtype: input.dtype,
            row: PerRow::new(rows, &row)?,
            classes,
            step: step[0],
            count: rows.iter().product(),
            reach: input.reach(&shape),
            level: Level::best(),
        })
    }

    /// Calls `f(first row, its results, buffers)`, a few rows at a time: the buffers hold the rows, the shifts and the sums
    /// of exponentials.
    pub(super) fn run<T: Scratched>(
        &self,
        x: &[T],
        out: &mut [T],
        f: impl Fn(usize, &mut [T], &mut Scratch<T>) + Sync,
    ) {
        let n = self.classes;
        let few = (BLOCK / n.max(1)).max(1);
        let walk = &self.row.walk;
        par::parts(out, few, n.saturating_mul(4), &|base, part| {
            T::scratch(|s| {
                for (k, out) in part.chunks_mut(few).enumerate() {
                    let first = base + k * few;
                    s.rows.resize(out.len() * n, T::default());
                    let stride = walk.inner_stride(0);
                    stretches(
                        &walk.shape,
                        &walk.strides[0],
                        walk.offsets[0],
                        first,
                        out.len(),
                        |i, at, len| {
                            if n == 0 {
                                return;
                            }
                            if self.step == 1 && stride == n {
                                s.rows[i * n..(i + len) * n].copy_from_slice(&x[at..at + len * n]);
                                return;
                            }
                            for j in 0..len {
                                copy_strided(&mut s.rows[(i + j) * n..][..n], x, at + j * stride, self.step);
                            }
                        },
                    );
                    s.copy.clear();
                    s.copy.extend_from_slice(&s.rows);
                    shifted_exponentials(self.level, &mut s.copy, n, &mut s.shift, &mut s.sum, out.len());
                    f(first, out, s);
                }
            });
        });
    }
}
