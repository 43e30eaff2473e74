//! A product of two tensors as cuBLASLt takes it.

use burn_backend::DType as BurnType;
use meshwright_gpu::products::{Epilogue, Matrix, MatrixElement, MatrixProduct, Sums, matrix_of};

fn element(dtype: BurnType) -> Option<MatrixElement> {
    match dtype {
        BurnType::F64 => Some(MatrixElement::F64),
        BurnType::F32 => Some(MatrixElement::F32),
        BurnType::BF16 => Some(MatrixElement::BF16),
        BurnType::F16 => Some(MatrixElement::F16),
        _ => None,
    }
}

/// The matrices `[.., rows, columns]` of a tensor, but for their address, and how many; none where it must be copied first, or its
/// elements are none that cuBLASLt multiplies. Strides are in elements.
pub(super) fn matrices(dtype: BurnType, shape: &[usize], strides: &[usize]) -> Option<(Matrix, usize)> {
    matrix_of(0, element(dtype)?, shape, strides)
}

/// The product of the matrices of two tensors, but for addresses; none where they are not equally many.
pub(super) fn product(
    left: (Matrix, usize),
    right: (Matrix, usize),
    out: (Matrix, usize),
) -> Option<MatrixProduct> {
    let (sums, epilogue) = (Sums::Exact, Epilogue::default());
    let product = MatrixProduct { left: left.0, right: right.0, out: out.0, batches: out.1, sums, epilogue };
    (left.1 == out.1 && right.1 == out.1).then_some(product)
}

/// The same with the addresses of left, right and out.
pub(super) fn at(product: MatrixProduct, [left, right, out]: [u64; 3]) -> MatrixProduct {
    let at = |matrix: Matrix, address| Matrix { address, ..matrix };
    MatrixProduct {
        left: at(product.left, left),
        right: at(product.right, right),
        out: at(product.out, out),
        ..product
    }
}
