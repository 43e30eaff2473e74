//! A product of two tensors as cuBLASLt takes it.

use burn_backend::DType as BurnType;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_gpu::matmuls::{
    Bits, Epilogue, Follows, Matmul, Matrix, MatrixElement, Order, Sums, matrix_of,
};
use meshwright_plan::Fp8;

fn element(dtype: BurnType) -> Option<MatrixElement> {
    match dtype {
        BurnType::F64 => Some(MatrixElement::F64),
        BurnType::F32 => Some(MatrixElement::F32),
        BurnType::BF16 => Some(MatrixElement::BF16),
        BurnType::F16 => Some(MatrixElement::F16),
        _ => None,
    }
}

fn code(format: Fp8) -> MatrixElement {
    match format {
        Fp8::E4M3 => MatrixElement::E4M3,
        Fp8::E5M2 => MatrixElement::E5M2,
    }
}

/// The matmul of factors in FP8, but for addresses, as [`MatmulCall`](meshwright_device::kernels::matmul::MatmulCall)
/// describes them: rows, columns and summed elements. None where the result is not a matrix of these rows and columns.
pub fn fp8_product(
    [rows, columns, summed]: [usize; 3],
    formats: [Fp8; 2],
    out: (Matrix, usize),
) -> Option<Matmul> {
    let matrix = |format: Fp8, (rows, columns): (usize, usize), order: Order| Matrix {
        address: 0,
        element: code(format),
        rows,
        columns,
        order,
        leading: summed,
        batch_stride: 0,
        spare: 0,
    };
    let (epilogue, sums) = (Epilogue::default(), Sums::Exact);
    let left = matrix(formats[0], (rows, summed), Order::Rows);
    let right = matrix(formats[1], (summed, columns), Order::Columns);
    let fits = out.1 == 1 && (out.0.rows, out.0.columns) == (rows, columns);
    let scales = Some([0, 0]);
    fits.then_some(Matmul { left, right, out: out.0, batches: 1, sums, epilogue, adds: None, scales })
}

/// The matrices `[.., rows, columns]` of a tensor, but for their address, and how many; none where it must be copied first, or
/// its elements are none that cuBLASLt multiplies. Strides are in elements.
pub fn matrices(dtype: BurnType, shape: &[usize], strides: &[usize]) -> Option<(Matrix, usize)> {
    matrix_of(0, element(dtype)?, shape, strides)
}

/// The product of the matrices of two tensors, but for addresses; none where they are not equally many.
pub fn product(
    left: (Matrix, usize),
    right: (Matrix, usize),
    out: (Matrix, usize),
    digits: FactorDigits,
) -> Option<Matmul> {
    let rounded = digits == FactorDigits::Tf32 && left.0.element == MatrixElement::F32;
    let sums = if rounded { Sums::Tf32 } else { Sums::Exact };
    let (epilogue, adds) = (Epilogue::default(), None);
    let batches = out.1;
    let (left, right, both) = (left.0, right.0, left.1 == batches && right.1 == batches);
    both.then_some(Matmul { left, right, out: out.0, batches, sums, epilogue, adds, scales: None })
}

/// The part of an epilogue after a bias, or on a factor; see [`Follows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Nothing,
    Relu,
    ReluKeeping,
    ReluGrad,
    GeluTanh,
    GeluTanhKeeping,
    GeluTanhGrad,
    RightSums,
    LeftSums,
}

/// Addresses of a matmul.
pub struct MatmulAddresses {
    pub factors: [u64; 2],
    pub out: u64,
    /// A bias, or the sums of a factor.
    pub vector: Option<u64>,
    /// Bits of a `relu`, or the operand of a `gelu`.
    pub aux: Option<u64>,
    /// What the product is added to.
    pub added: Option<u64>,
    /// The scales of factors in FP8.
    pub scales: Option<[u64; 2]>,
}

/// The same with addresses, and the rest of the epilogue.
pub fn at(product: Matmul, then: Then, places: &MatmulAddresses) -> Matmul {
    let at = |matrix: Matrix, address| Matrix { address, ..matrix };
    let (vector, columns) = (places.vector, product.out.columns);
    let bits = Bits::of(places.aux.unwrap_or(0), columns);
    let (bias, then) = match then {
        Then::Nothing => (vector, Follows::Nothing),
        Then::Relu => (vector, Follows::Relu),
        Then::ReluKeeping => (vector, Follows::ReluKeeping(bits)),
        Then::ReluGrad => (None, Follows::ReluGrad(bits)),
        Then::GeluTanh => (vector, Follows::GeluTanh),
        Then::GeluTanhKeeping => (vector, Follows::GeluTanhKeeping(places.aux.unwrap_or(0))),
        Then::GeluTanhGrad => (None, Follows::GeluTanhGrad(places.aux.unwrap_or(0))),
        Then::RightSums => (None, Follows::RightSums(vector.unwrap_or(0))),
        Then::LeftSums => (None, Follows::LeftSums(vector.unwrap_or(0))),
    };
    Matmul {
        left: at(product.left, places.factors[0]),
        right: at(product.right, places.factors[1]),
        out: at(product.out, places.out),
        epilogue: Epilogue { bias, then, ..product.epilogue },
        adds: places.added,
        scales: places.scales,
        ..product
    }
}
