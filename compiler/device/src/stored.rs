//! The form in which elements are stored.

use burn_backend::DType as BurnType;
use meshwright_plan::DType;

/// Burn's dtype in which elements are stored. Truth values are bytes; a pair in one part is one `u64`, or two.
pub fn stored_as(dtype: DType) -> BurnType {
    match dtype {
        DType::F64 => BurnType::F64,
        DType::F32 => BurnType::F32,
        DType::BF16 => BurnType::BF16,
        DType::F16 => BurnType::F16,
        DType::I32 => BurnType::I32,
        DType::U8 | DType::Bool => BurnType::U8,
        DType::PairF32 | DType::PairF64 => BurnType::U64,
    }
}

/// Whether elements are stored in it, but not computed.
pub fn is_half(dtype: BurnType) -> bool {
    matches!(dtype, BurnType::BF16 | BurnType::F16)
}

/// The extents of a tensor: a scalar has one.
pub fn extents(shape: &[usize]) -> Vec<usize> {
    if shape.is_empty() { vec![1] } else { shape.to_vec() }
}

/// The shape in which a tensor is stored: a pair of 16 bytes takes two elements.
pub fn stored_shape(dtype: DType, shape: &[usize]) -> Vec<usize> {
    let mut shape = extents(shape);
    if dtype == DType::PairF64 {
        shape.push(2);
    }
    shape
}
