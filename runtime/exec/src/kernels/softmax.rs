//! Softmax and what is made of it. Rows are taken a few at a time, so that short rows are vector code too; rows that are
//! not contiguous are gathered into a scratch buffer first.

use super::data::Element;
use super::fold::{self, MaxF32, MaxF64};
use super::level::{Level, multiversion};
use super::math::Real;
use super::walk::{Walk, copy_strided, stretches};
use super::{Access, Arg, KernelError, Slice, SliceMut, par};
use meshwright_plan::DType;
use std::cell::RefCell;

/// Elements of the rows that are taken at a time (a single row may be longer).
const BLOCK: usize = 2048;

/// Buffers of a thread: gathered rows, and numbers of each of them.
#[derive(Default)]
struct Scratch<T> {
    rows: Vec<T>,
    copy: Vec<T>,
    shift: Vec<T>,
    sum: Vec<T>,
    scale: Vec<T>,
    label: Vec<i32>,
}

trait Scratched: Real {
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

multiversion! {
    fn sum[T: Real](x: &[T]) -> T {
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
    fn affine[T: Real](x: &mut [T], classes: usize, factor: &[T], shift: &[T]) {
        for (row, (f, s)) in x.chunks_exact_mut(classes).zip(factor.iter().zip(shift)) {
            for x in row {
                *x = *x * *f - *s;
            }
        }
    }
}

multiversion! {
    /// `x = x / divisor`, with one a row.
    fn divide[T: Real](x: &mut [T], classes: usize, divisor: &[T]) {
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

/// Each row becomes `exp(x - shift)`; gives the shifts and the rows' sums. The shift is the greatest element, or 0 where
/// that is not finite: sums of infinities are then what they should be.
fn shifted_exponentials<T: Scratched>(
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
    shift.extend(x.chunks_exact(classes).map(|row| {
        let m = T::greatest(level, row);
        if m.finite() { m } else { T::default() }
    }));
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

fn labels(label: &Access) -> Result<(), KernelError> {
    if label.dtype == DType::I32 {
        return Ok(());
    }
    Err(KernelError::DType { expected: DType::I32, found: label.dtype })
}

/// A number for each row, where rows are counted in row-major order.
#[derive(Clone, Debug)]
struct PerRow {
    walk: Walk,
    reach: usize,
}

impl PerRow {
    fn new(rows: &[usize], access: &Access) -> Result<PerRow, KernelError> {
        Ok(PerRow { walk: Walk::new(rows, &[access])?, reach: access.reach(rows) })
    }

    fn read<T: Element>(&self, from: &[T], start: usize, n: usize, into: &mut Vec<T>) {
        into.resize(n, T::default());
        let stride = self.walk.inner_stride(0);
        stretches(&self.walk.shape, &self.walk.strides[0], self.walk.offsets[0], start, n, |i, at, len| {
            copy_strided(&mut into[i..i + len], from, at, stride);
        });
    }
}

/// Rows along one dim of a dense array, changed in place.
#[derive(Clone, Debug)]
struct InPlace {
    dtype: DType,
    classes: usize,
    inner: usize,
    total: usize,
    level: Level,
}

impl InPlace {
    fn new(dtype: DType, shape: &[usize], dim: usize) -> Result<InPlace, KernelError> {
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

    fn check(&self, input: &Arg<'_>, out: &SliceMut<'_>) -> Result<(), KernelError> {
        super::check_out(out, self.dtype, self.total)?;
        match input {
            Arg::Slice(s) => super::check_in(s, self.dtype, self.total),
            Arg::Out(0) => Ok(()),
            Arg::Out(k) => Err(KernelError::Count { expected: 1, found: k + 1 }),
        }
    }

    /// Calls `f(first row, rows, buffers)` for all rows, a few at a time, which it changes from input to output.
    fn run<T: Scratched>(
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

    fn softmax<T: Scratched>(&self, rows: &mut [T], s: &mut Scratch<T>) {
        let n = rows.len() / self.classes;
        shifted_exponentials(self.level, rows, self.classes, &mut s.shift, &mut s.sum, n);
        divide(self.level, rows, self.classes, &s.sum);
    }

    fn log_softmax<T: Scratched>(&self, rows: &mut [T], s: &mut Scratch<T>) {
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

/// Of a row's sum, where there is one a row: the same on all machines.
fn logarithm<T: Real>(x: T) -> T {
    x.log::<false>()
}

/// A prepared softmax or log-softmax along one dim of a dense array.
#[derive(Clone, Debug)]
pub struct SoftmaxKernel {
    rows: InPlace,
    log: bool,
}

impl SoftmaxKernel {
    /// Prepares for dense operands of that shape, along dim number `dim`.
    ///
    /// # Errors
    /// If there is no such dim, or the dtype is no float.
    pub fn new(dtype: DType, shape: &[usize], dim: usize, log: bool) -> Result<SoftmaxKernel, KernelError> {
        Ok(SoftmaxKernel { rows: InPlace::new(dtype, shape, dim)?, log })
    }

    /// Normalises. The input may be `Arg::Out(0)`.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Arg<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        self.rows.check(&input, &out)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(input, out),
            _ => self.go::<f32>(input, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> SoftmaxKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, input: Arg<'_>, out: SliceMut<'_>) {
        let Some(out) = T::of_mut(out) else { return };
        self.rows.run(own(input), out, |_, rows, s| {
            if self.log { self.rows.log_softmax(rows, s) } else { self.rows.softmax(rows, s) }
        });
    }
}

/// The input's elements, unless they stand in the output.
fn own<'a, T: Element>(input: Arg<'a>) -> Option<&'a [T]> {
    match input {
        Arg::Slice(s) => T::of(s),
        Arg::Out(_) => None,
    }
}

/// A prepared gradient of the cross-entropy along one dim of a dense array.
#[derive(Clone, Debug)]
pub struct CrossEntropyGradKernel {
    rows: InPlace,
    label: PerRow,
    scale: PerRow,
}

impl CrossEntropyGradKernel {
    /// Prepares `out = (softmax(logits) - onehot(label)) * scale` for dense logits and output of that shape, along dim
    /// number `dim`. Label (`I32`) and scale are walked over `shape`, with stride 0 along `dim`.
    ///
    /// # Errors
    /// If there is no such dim, a stride is missing, or a dtype does not fit.
    pub fn new(
        dtype: DType,
        shape: &[usize],
        dim: usize,
        label: &Access,
        scale: &Access,
    ) -> Result<CrossEntropyGradKernel, KernelError> {
        let rows = InPlace::new(dtype, shape, dim)?;
        labels(label)?;
        if scale.dtype != dtype {
            return Err(KernelError::DType { expected: dtype, found: scale.dtype });
        }
        let mut row_shape = shape.to_vec();
        row_shape.remove(dim);
        let per_row = |a: &Access| {
            a.check_rank(shape)?;
            let mut a = a.clone();
            if a.strides.remove(dim) != 0 {
                return Err(KernelError::Unsupported("a label or scale for each class".into()));
            }
            PerRow::new(&row_shape, &a)
        };
        Ok(CrossEntropyGradKernel { rows, label: per_row(label)?, scale: per_row(scale)? })
    }

    /// Computes the gradient. The logits may be `Arg::Out(0)`. A label that is no class has no one in its row.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(
        &self,
        logits: Arg<'_>,
        label: Slice<'_>,
        scale: Slice<'_>,
        out: SliceMut<'_>,
    ) -> Result<(), KernelError> {
        self.rows.check(&logits, &out)?;
        let empty = self.rows.total == 0;
        super::check_in(&label, DType::I32, if empty { 0 } else { self.label.reach })?;
        super::check_in(&scale, self.rows.dtype, if empty { 0 } else { self.scale.reach })?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(logits, label, scale, out),
            _ => self.go::<f32>(logits, label, scale, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CrossEntropyGradKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, logits: Arg<'_>, label: Slice<'_>, scale: Slice<'_>, out: SliceMut<'_>) {
        let (Some(out), Some(label), Some(scale)) = (T::of_mut(out), i32::of(label), T::of(scale)) else { return };
        let classes = self.rows.classes;
        self.rows.run(own(logits), out, |first, rows, s| {
            let n = rows.len() / classes;
            self.label.read(label, first, n, &mut s.label);
            self.scale.read(scale, first, n, &mut s.scale);
            shifted_exponentials(self.rows.level, rows, classes, &mut s.shift, &mut s.sum, n);
            // (e / sum - onehot) * scale
            divide(self.rows.level, rows, classes, &s.sum);
            for (row, label) in rows.chunks_exact_mut(classes).zip(&s.label) {
                if let Some(x) = usize::try_from(*label).ok().and_then(|l| row.get_mut(l)) {
                    *x -= T::ONE;
                }
            }
            s.shift.iter_mut().for_each(|x| *x = T::default());
            affine(self.rows.level, rows, classes, &s.scale, &s.shift);
        });
    }
}

/// Rows of any strides, of which each gives one number.
#[derive(Clone, Debug)]
struct Rows {
    dtype: DType,
    row: PerRow,
    classes: usize,
    step: usize,
    count: usize,
    reach: usize,
    level: Level,
}

impl Rows {
    fn new(rows: &[usize], classes: usize, input: &Access) -> Result<Rows, KernelError> {
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
    fn run<T: Scratched>(&self, x: &[T], out: &mut [T], f: impl Fn(usize, &mut [T], &mut Scratch<T>) + Sync) {
        let n = self.classes;
        let few = (BLOCK / n.max(1)).max(1);
        let walk = &self.row.walk;
        par::parts(out, few, n.saturating_mul(4), &|base, part| {
            T::scratch(|s| {
                for (k, out) in part.chunks_mut(few).enumerate() {
                    let first = base + k * few;
                    s.rows.resize(out.len() * n, T::default());
                    let stride = walk.inner_stride(0);
                    stretches(&walk.shape, &walk.strides[0], walk.offsets[0], first, out.len(), |i, at, len| {
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
                    });
                    s.copy.clear();
                    s.copy.extend_from_slice(&s.rows);
                    shifted_exponentials(self.level, &mut s.copy, n, &mut s.shift, &mut s.sum, out.len());
                    f(first, out, s);
                }
            });
        });
    }
}

/// A prepared `log(sum(exp(x)))` of rows. Of nothing it is `-inf`.
#[derive(Clone, Debug)]
pub struct LogSumExpKernel {
    rows: Rows,
}

impl LogSumExpKernel {
    /// Prepares for an output that is dense over `rows`; the input is walked over `rows`, then the classes.
    ///
    /// # Errors
    /// If a stride is missing or the dtype is no float.
    pub fn new(rows: &[usize], classes: usize, input: &Access) -> Result<LogSumExpKernel, KernelError> {
        Ok(LogSumExpKernel { rows: Rows::new(rows, classes, input)? })
    }

    /// Computes.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, input: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&input, self.rows.dtype, self.rows.reach)?;
        super::check_out(&out, self.rows.dtype, self.rows.count)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(input, out),
            _ => self.go::<f32>(input, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> LogSumExpKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, input: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(out)) = (T::of(input), T::of_mut(out)) else { return };
        self.rows.run(x, out, |_, out, s| {
            for (o, (shift, sum)) in out.iter_mut().zip(s.shift.iter().zip(&s.sum)) {
                *o = *shift + logarithm(*sum);
            }
        });
    }
}

/// A prepared `logsumexp(logits) - logits[label]` of rows.
#[derive(Clone, Debug)]
pub struct CrossEntropyKernel {
    rows: Rows,
    label: PerRow,
}

impl CrossEntropyKernel {
    /// Prepares for an output that is dense over `rows`; the logits are walked over `rows`, then the classes, the label
    /// (`I32`) over `rows`.
    ///
    /// # Errors
    /// If a stride is missing or a dtype does not fit.
    pub fn new(
        rows: &[usize],
        classes: usize,
        logits: &Access,
        label: &Access,
    ) -> Result<CrossEntropyKernel, KernelError> {
        labels(label)?;
        Ok(CrossEntropyKernel { rows: Rows::new(rows, classes, logits)?, label: PerRow::new(rows, label)? })
    }

    /// Computes. The logit of a label that is no class counts as 0, as a lookup has it.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, logits: Slice<'_>, label: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        super::check_in(&logits, self.rows.dtype, self.rows.reach)?;
        super::check_in(&label, DType::I32, self.label.reach)?;
        super::check_out(&out, self.rows.dtype, self.rows.count)?;
        match self.rows.dtype {
            DType::F64 => self.go::<f64>(logits, label, out),
            _ => self.go::<f32>(logits, label, out),
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> CrossEntropyKernel {
        self.rows.level = level;
        self
    }

    fn go<T: Scratched>(&self, logits: Slice<'_>, label: Slice<'_>, out: SliceMut<'_>) {
        let (Some(x), Some(label), Some(out)) = (T::of(logits), i32::of(label), T::of_mut(out)) else { return };
        let classes = self.rows.classes;
        self.rows.run(x, out, |first, out, s| {
            self.label.read(label, first, out.len(), &mut s.label);
            for (r, o) in out.iter_mut().enumerate() {
                let row = &s.rows[r * classes..(r + 1) * classes];
                let logit = usize::try_from(s.label[r]).ok().and_then(|l| row.get(l));
                // The difference of the large numbers first: it is exact where they are close.
                *o = logarithm(s.sum[r]) + (s.shift[r] - logit.copied().unwrap_or_default());
            }
        });
    }
}
