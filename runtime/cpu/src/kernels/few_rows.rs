//! Products of a few rows with a matrix, as when a model decodes: they cost what it takes to read the matrix, so every thread
//! reads its part of it once, in place.

use super::data::Element;
use super::half_types::Half;
use super::instruction_set::{Level, multiversion};
use super::{KernelError, Slice, SliceMut, check_in, check_out};
use half::{bf16, f16};
pub use meshwright_device::kernels::host::ThinShape;
use meshwright_plan::DType;
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

/// Elements of the matrix that a task reads, about.
const PART: usize = 1 << 17;
/// Most columns that are summed at a time, so that their sums stay in the nearest cache.
const STRIP: usize = 1 << 12;
/// Most elements that are summed at a time, so that a sum of many, such as the squares of a gradient, does not lose the small
/// ones.
const DEEP: usize = 1 << 14;

/// A prepared product. Factors may be of half types, the result is of the wide type.
#[derive(Clone, Debug)]
pub struct ThinKernel {
    dtype: DType,
    shape: ThinShape,
    level: Level,
}

/// An element type that is computed in a wider one.
trait Widened: Element {
    type Wide: Element + std::ops::Mul<Output = Self::Wide> + std::ops::Add<Output = Self::Wide>;
    fn widened(self) -> Self::Wide;
    /// The elements themselves, if they have the wider type already.
    fn lying(all: &[Self]) -> Option<&[Self::Wide]>;
}

macro_rules! widened {
    ($($t:ty, $wide:ty, $how:expr, $lying:expr;)*) => {$(
        impl Widened for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widened(self) -> $wide {
                $how(self)
            }
            fn lying(all: &[$t]) -> Option<&[$wide]> {
                $lying(all)
            }
        }
    )*};
}
widened! {
    f64, f64, |x| x, Some;
    f32, f32, |x| x, Some;
    bf16, f32, Half::wide, |_| None;
    f16, f32, Half::wide, |_| None;
}

/// Packs rows of `inner` elements one after the other; `row` and `element` are their strides.
fn packed<T: Widened>(thin: &[T], inner: usize, [row, element]: [usize; 2]) -> Cow<'_, [T::Wide]> {
    let rows = thin.len() / inner.max(1);
    let dense = element == 1 && (rows == 1 || row == inner);
    if let Some(as_it_is) = T::lying(thin).filter(|_| dense) {
        return Cow::Borrowed(as_it_is);
    }
    let mut all = Vec::with_capacity(thin.len());
    for r in 0..rows {
        match element {
            1 => all.extend(thin[r * row..][..inner].iter().map(|x| x.widened())),
            _ => all.extend((0..inner).map(|s| thin[r * row + s * element].widened())),
        }
    }
    Cow::Owned(all)
}

impl ThinKernel {
    /// Prepares for factors of a dtype.
    ///
    /// # Errors
    /// If the dtype is no float.
    pub fn new(dtype: DType, shape: ThinShape) -> Result<ThinKernel, KernelError> {
        if !dtype.is_float() {
            return Err(KernelError::Unsupported(format!("products of {dtype}")));
        }
        // A single column lies both ways, and as a row it is summed in many sums at once.
        let shape = ThinShape { by_columns: shape.by_columns || shape.columns == 1, ..shape };
        Ok(ThinKernel { dtype, shape, level: Level::best() })
    }

    /// Multiplies.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, thin: Slice<'_>, matrix: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        let ThinShape { rows, inner, columns, .. } = self.shape;
        check_in(&thin, self.dtype, rows * inner)?;
        check_in(&matrix, self.dtype, inner * columns)?;
        check_out(&out, self.dtype.wide(), rows * columns)?;
        match self.dtype {
            DType::F64 => self.go::<f64>(thin, matrix, out),
            DType::F32 => self.go::<f32>(thin, matrix, out),
            DType::F16 => self.go::<f16>(thin, matrix, out),
            _ => self.go::<bf16>(thin, matrix, out),
        }
        Ok(())
    }

    fn go<T: Widened>(&self, thin: Slice<'_>, matrix: Slice<'_>, out: SliceMut<'_>) {
        let (Some(thin), Some(matrix), Some(out)) = (T::of(thin), T::of(matrix), T::Wide::of_mut(out)) else {
            return;
        };
        let ThinShape { rows, inner, columns, by_columns, thin: strides, result } = self.shape;
        let factor = packed(thin, inner, strides);
        // Each task reads contiguous memory. Its bounds, and so the order of sums, depend on sizes alone.
        let strips = if by_columns { 1 } else { columns.div_ceil(STRIP) };
        let wanted = tasks(inner * columns);
        let (width, deep) = match by_columns {
            true => {
                let parts = inner.div_ceil(DEEP).max(1);
                (columns.div_ceil(wanted.div_ceil(parts)).max(1), inner.div_ceil(parts).max(1))
            }
            false => (columns.div_ceil(strips), inner.div_ceil(wanted.div_ceil(strips)).max(1)),
        };
        let parts = inner.div_ceil(deep);
        let mut all = vec![T::Wide::default(); rows * columns * parts];
        let mut left = &mut all[..];
        let mut made = Vec::new();
        for first in (0..columns).step_by(width) {
            for from in (0..inner).step_by(deep) {
                let width = width.min(columns - first);
                let (sums, rest) = std::mem::take(&mut left).split_at_mut(rows * width);
                left = rest;
                made.push(Mutex::new(TaskSums { first, from, width, sums }));
            }
        }
        let task = |k: usize| {
            let mut part = made[k].lock().unwrap_or_else(PoisonError::into_inner);
            let TaskSums { first, from, ref mut sums, .. } = *part;
            let deep = deep.min(inner - from);
            if by_columns {
                dots::<T>(self.level, &matrix[first * inner + from..], &factor[from..], sums, [deep, inner]);
            } else {
                let sizes = [deep, columns, inner];
                combine::<T>(self.level, &matrix[from * columns + first..], &factor[from..], sums, sizes);
            }
        };
        if super::par::worth(inner * columns) {
            super::par::tasks(made.len(), &task);
        } else {
            (0..made.len()).for_each(task);
        }
        let made = made.into_iter().map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner));
        out.fill(T::Wide::default());
        for TaskSums { first, width, sums, .. } in made {
            for (r, sums) in sums.chunks_exact(width).enumerate() {
                let at = r * result[0] + first * result[1];
                if result[1] == 1 {
                    out[at..at + width].iter_mut().zip(sums).for_each(|(to, sum)| *to = *to + *sum);
                } else {
                    for (c, sum) in sums.iter().enumerate() {
                        let to = &mut out[at + c * result[1]];
                        *to = *to + *sum;
                    }
                }
            }
        }
    }
}

/// Number of tasks that read a matrix of `elements` elements: a multiple of what few threads can share evenly.
fn tasks(elements: usize) -> usize {
    elements.div_ceil(PART).next_multiple_of(8)
}

/// Sums of a task, `[rows, width]`: of `width` columns from the first on, over steps from `from` on.
struct TaskSums<'s, T> {
    first: usize,
    from: usize,
    width: usize,
    sums: &'s mut [T],
}

multiversion! {
    /// For each row of `factor`, its product with each row of `matrix`, over the first `depth` elements of both; rows lie
    /// `apart`, and sums are `[rows, columns]`.
    fn dots[T: Widened](matrix: &[T], factor: &[T::Wide], sums: &mut [T::Wide], sizes: [usize; 2]) {
        let [depth, apart] = sizes;
        // Several columns at a time, each with many sums, so that many reads of the matrix overlap. The sums are folded outside
        // of the loop: otherwise compilers vectorize the loop for the fold, in pairs instead of whole registers.
        const LANES: usize = 32;
        const COLUMNS: usize = 4;
        let columns = sums.len() / factor.len().div_ceil(apart);
        for (block, some) in matrix.chunks(COLUMNS * apart).enumerate().take(columns.div_ceil(COLUMNS)) {
            let count = (columns - block * COLUMNS).min(COLUMNS);
            // The last block may have fewer columns: the last of them is then computed again, for nothing.
            let column = |c: usize| some[c.min(count - 1) * apart..][..depth].as_chunks::<LANES>();
            let all: [_; COLUMNS] = std::array::from_fn(column);
            let [of0, of1, of2, of3] = all.map(|c| c.0);
            for (r, row) in factor.chunks(apart).enumerate() {
                let (of_row, rest) = row[..depth].as_chunks::<LANES>();
                let mut lanes = [[T::Wide::default(); LANES]; COLUMNS];
                for ((((a, b0), b1), b2), b3) in of_row.iter().zip(of0).zip(of1).zip(of2).zip(of3) {
                    for l in 0..LANES {
                        lanes[0][l] = lanes[0][l] + a[l] * b0[l].widened();
                    }
                    for l in 0..LANES {
                        lanes[1][l] = lanes[1][l] + a[l] * b1[l].widened();
                    }
                    for l in 0..LANES {
                        lanes[2][l] = lanes[2][l] + a[l] * b2[l].widened();
                    }
                    for l in 0..LANES {
                        lanes[3][l] = lanes[3][l] + a[l] * b3[l].widened();
                    }
                }
                for (c, (lanes, of_column)) in lanes.iter_mut().zip(&all).enumerate().take(count) {
                    for (lane, (a, b)) in lanes.iter_mut().zip(rest.iter().zip(of_column.1)) {
                        *lane = *lane + *a * b.widened();
                    }
                    let mut n = LANES;
                    while n > 1 {
                        n /= 2;
                        for l in 0..n {
                            lanes[l] = lanes[l] + lanes[l + n];
                        }
                    }
                    sums[r * columns + block * COLUMNS + c] = lanes[0];
                }
            }
        }
    }
}

multiversion! {
    /// For each row of `factor`, the sum of `depth` rows of `matrix`, which lie `stride` apart, weighted by it. Rows of `factor`
    /// lie `apart`.
    fn combine[T: Widened](matrix: &[T], factor: &[T::Wide], sums: &mut [T::Wide], sizes: [usize; 3]) {
        let [depth, stride, apart] = sizes;
        let width = sums.len() / factor.len().div_ceil(apart);
        let mut s = 0;
        while s < depth {
            let many = (depth - s).min(4);
            let row = |k: usize| &matrix[(s + k) * stride..][..width];
            for (r, sums) in sums.chunks_exact_mut(width).enumerate() {
                let f = &factor[r * apart..][s..s + many];
                if let [f0, f1, f2, f3] = *f {
                    let rows = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
                    for (sum, (((a, b), c), d)) in sums.iter_mut().zip(rows) {
                        let low = f0 * a.widened() + f1 * b.widened();
                        *sum = *sum + (low + (f2 * c.widened() + f3 * d.widened()));
                    }
                } else {
                    for (k, f) in f.iter().enumerate() {
                        for (sum, a) in sums.iter_mut().zip(row(k)) {
                            *sum = *sum + *f * a.widened();
                        }
                    }
                }
            }
            s += many;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Every way that the factors and the result may lie, against sums in order.
    #[test]
    fn products_are_sums_of_products() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        for (rows, inner, columns) in [
            (1, 300, 4100),
            (1, 4100, 70),
            (3, 257, 1000),
            (4, 5, 900),
            (2, 700, 3),
            (2, 40_000, 5),
            (1, 20_001, 1),
        ] {
            for by_columns in [false, true] {
                for turned in [false, true] {
                    let number = |i: usize| ((i * 2_654_435_761) % 1013) as f64 / 512.0 - 1.0;
                    let thin: Vec<f64> = (0..rows * inner).map(number).collect();
                    let matrix: Vec<f64> = (0..inner * columns).map(|i| number(i + 7)).collect();
                    let (at, to) = if turned { ([1, rows], [1, rows]) } else { ([inner, 1], [columns, 1]) };
                    let shape = ThinShape { rows, inner, columns, by_columns, thin: at, result: to };
                    let kernel = ThinKernel::new(DType::F64, shape).unwrap();
                    let mut out = vec![9.0; rows * columns];
                    pool.install(|| {
                        kernel.run(Slice::F64(&thin), Slice::F64(&matrix), SliceMut::F64(&mut out)).unwrap();
                    });
                    for r in 0..rows {
                        for c in 0..columns {
                            let of = |s: usize| if by_columns { c * inner + s } else { s * columns + c };
                            let sum: f64 =
                                (0..inner).map(|s| thin[r * at[0] + s * at[1]] * matrix[of(s)]).sum();
                            let found = out[r * to[0] + c * to[1]];
                            assert!(
                                (found - sum).abs() < 1e-9,
                                "{shape:?} at {r}, {c}: {found} is not {sum}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// The norm of a gradient is the sum of many squares.
    #[test]
    fn a_sum_of_many_squares_is_near() {
        let x: Vec<f32> = (0..1 << 19).map(|i| ((i * 40_503) % 1013) as f32 / 1013.0).collect();
        let shape = ThinShape {
            rows: 1,
            inner: x.len(),
            columns: 1,
            by_columns: false,
            thin: [1, 1],
            result: [1, 1],
        };
        let mut out = [0.0f32];
        let kernel = ThinKernel::new(DType::F32, shape).unwrap();
        kernel.run(Slice::F32(&x), Slice::F32(&x), SliceMut::F32(&mut out)).unwrap();
        let sum: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((f64::from(out[0]) / sum - 1.0).abs() < 3e-7, "{} is not {sum}", out[0]);
    }

    #[test]
    fn factors_of_16_bits_are_summed_in_32() {
        let x: Vec<bf16> = (0..600).map(|i| bf16::from_f32(1.0 + (i % 7) as f32 / 128.0)).collect();
        let shape =
            ThinShape { rows: 1, inner: 600, columns: 1, by_columns: true, thin: [600, 1], result: [1, 1] };
        let mut out = [0.0f32];
        let kernel = ThinKernel::new(DType::BF16, shape).unwrap();
        kernel.run(Slice::BF16(&x), Slice::BF16(&x), SliceMut::F32(&mut out)).unwrap();
        let sum: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
        assert!((f64::from(out[0]) - sum).abs() < 1e-3, "{} is not {sum}", out[0]);
    }
}
