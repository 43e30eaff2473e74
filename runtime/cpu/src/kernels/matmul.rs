//! Contractions as matrix products: of matrices that lie side by side along further dims, or of a single one.

use super::math::Real;
use super::matrix::{Matrix, product};
use super::{KernelError, Slice, SliceMut, check_in, check_out, par};
pub use meshwright_device::kernels::host::{Factored, HostKernel, HostWork};
use meshwright_plan::DType;
use rayon::prelude::*;

/// Multiplications from which on a product is shared by the threads of a pool.
const SHARED: usize = 192 * 192 * 192;

/// A prepared product: `out[batch.., m, n] = sum over k of left[batch.., m, k] * right[batch.., k, n]`.
#[derive(Clone, Debug)]
pub struct MatmulKernel {
    dtype: DType,
    sizes: [usize; 3],
    /// For each matrix where its factors begin.
    begins: Vec<[usize; 2]>,
    factors: [Factored; 2],
}

impl MatmulKernel {
    /// Prepares for `[m, n, k]` and the sizes of the batch; a result of `dtype`, which is `f32` or `f64`, is dense.
    ///
    /// # Errors
    /// If the dtype is another.
    pub fn new(
        dtype: DType,
        batch: &[usize],
        sizes: [usize; 3],
        left: Factored,
        right: Factored,
    ) -> Result<MatmulKernel, KernelError> {
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(KernelError::Unsupported(format!("products of {dtype}")));
        }
        let mut begins = vec![[0, 0]];
        for (d, size) in batch.iter().enumerate() {
            let step = [left.batch[d], right.batch[d]];
            let along = |[a, b]: [usize; 2]| (0..*size).map(move |i| [a + i * step[0], b + i * step[1]]);
            begins = begins.into_iter().flat_map(along).collect();
        }
        Ok(MatmulKernel { dtype, sizes, begins, factors: [left, right] })
    }

    /// Multiplies.
    ///
    /// # Errors
    /// If dtypes or lengths of the operands are not what was prepared for.
    pub fn run(&self, left: Slice<'_>, right: Slice<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
        let [m, n, k] = self.sizes;
        let last = |at: usize, rows: usize, columns: usize| {
            let (most, f) = (self.begins.iter().map(|b| b[at]).max().unwrap_or(0), &self.factors[at]);
            most + (rows - 1) * f.row + (columns - 1) * f.column + 1
        };
        check_in(&left, self.dtype, last(0, m, k))?;
        check_in(&right, self.dtype, last(1, k, n))?;
        check_out(&out, self.dtype, self.begins.len() * m * n)?;
        match (left, right, out) {
            (Slice::F64(a), Slice::F64(b), SliceMut::F64(out)) => self.go(a, b, out),
            (Slice::F32(a), Slice::F32(b), SliceMut::F32(out)) => self.go(a, b, out),
            _ => {}
        }
        Ok(())
    }

    fn go<T: Real>(&self, left: &[T], right: &[T], out: &mut [T]) {
        let [m, n, k] = self.sizes;
        let each = m * n * k;
        let large = each.saturating_mul(self.begins.len()) >= SHARED && par::shared();
        let by_matrix = large && self.begins.len() >= rayon::current_num_threads();
        let shared = large && !by_matrix && each >= SHARED;
        let one = |(to, [a, b]): (&mut [T], &[usize; 2])| {
            let of = |data, f: &Factored| Matrix { data, row: f.row, column: f.column };
            let (a, b) = (of(&left[*a..], &self.factors[0]), of(&right[*b..], &self.factors[1]));
            product(to, self.sizes, a, b, false, shared);
        };
        if by_matrix {
            out.par_chunks_mut(m * n).zip(&self.begins).for_each(one);
        } else {
            out.chunks_mut(m * n).zip(&self.begins).for_each(one);
        }
    }
}
