//! Matrices in memory and their product, by the crate `gemm`.

use super::math::Real;

/// A matrix in memory: its first element, and the steps to the next row and the next column.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    pub(super) data: &'a [T],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<T> Matrix<'_, T> {
    pub(super) fn transposed(self) -> Self {
        Matrix { row: self.column, column: self.row, ..self }
    }
}

/// `to = a b`, or `to += a b`, where `to` is dense with `n` columns, and `k` is what is summed; shared with the pool that the
/// thread is in, if wanted.
#[expect(unsafe_code, reason = "the matrix product takes pointers")]
pub(super) fn product<T: Real>(
    to: &mut [T],
    [m, n, k]: [usize; 3],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    add: bool,
    shared: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            to[..m * n].fill(T::default());
        }
        return;
    }
    let reach =
        |x: &Matrix<'_, T>, rows: usize, columns: usize| (rows - 1) * x.row + (columns - 1) * x.column;
    assert!(to.len() >= m * n && reach(&a, m, k) < a.data.len() && reach(&b, k, n) < b.data.len());
    let alpha = if add { T::ONE } else { T::default() };
    // SAFETY: all elements that are read and written are within the slices, as was just checked, and `to` is borrowed alone.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to.as_mut_ptr(),
            1,
            n as isize,
            add,
            a.data.as_ptr(),
            a.column as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.column as isize,
            b.row as isize,
            alpha,
            T::ONE,
            false,
            false,
            false,
            if shared { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None },
        );
    }
}
