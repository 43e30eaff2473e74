//! Element types.

use serde::{Deserialize, Serialize};

/// Type of the elements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 64-bit IEEE float.
    F64,
    /// 32-bit IEEE float.
    F32,
    /// 16-bit float with the exponent of `f32` and 8 significant bits (bfloat16).
    BF16,
    /// 16-bit IEEE float: 11 significant bits, up to 65504.
    F16,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer; only inputs have it.
    U8,
    /// Truth value, one byte, 0 or 1.
    Bool,
    /// An `f32` value with the `u32` index it stands at: 8 bytes, value first. Only arg-reductions make it.
    PairF32,
    /// An `f64` value with the `u64` index it stands at: 16 bytes, value first. Only arg-reductions make it.
    PairF64,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::PairF64 => 16,
            DType::F64 | DType::PairF32 => 8,
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// True for `f64`, `f32` and the half types.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32) || self.is_half()
    }

    /// True for `bf16` and `f16`: storage types, not types of arithmetic.
    pub fn is_half(self) -> bool {
        matches!(self, DType::BF16 | DType::F16)
    }

    /// The dtype of arithmetic on values of this dtype: `f32` for the half types, else itself.
    pub fn wide(self) -> DType {
        if self.is_half() { DType::F32 } else { self }
    }

    /// True for integers.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I32 | DType::U8)
    }

    /// The pair type that an arg-reduction of this type makes; half types reduce as `f32` and integers as `f64`, which hold
    /// them exactly.
    pub fn pair(self) -> DType {
        if self.wide() == DType::F32 { DType::PairF32 } else { DType::PairF64 }
    }

    /// True for a value with its index.
    pub fn is_pair(self) -> bool {
        matches!(self, DType::PairF32 | DType::PairF64)
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
            DType::PairF32 => "pair of f32 and index",
            DType::PairF64 => "pair of f64 and index",
        }
    }
}

/// A power of two by which elements are multiplied before they are squared, where the sum of their squares may be beyond a dtype
/// although its root is not. What then is too small to count was too small beside so large a sum.
pub const fn square_scale(dtype: DType) -> f64 {
    let halvings = if matches!(dtype, DType::F64) { 540 } else { 70 };
    // The exponent of 1 less these, in its place.
    f64::from_bits((1023 - halvings) << 52)
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
