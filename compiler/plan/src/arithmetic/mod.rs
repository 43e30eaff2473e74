//! Arithmetic of a program: the precision that users choose.

mod fp8;

use crate::DType;
use serde::{Deserialize, Serialize};

pub use fp8::{Fp8, power_of_two};

/// The arithmetic of a program, as `precision` and `--precision` name it. It is not the dtype of every value: a program of `bf16`
/// has values of `f32` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// All floats are `f32`.
    F32,
    /// All floats are `f64`.
    F64,
    /// Products read `bf16`, and activations are stored in it; sums and parameters are `f32`.
    BF16,
    /// The same in `f16`, with a scaled loss.
    F16,
    /// All floats are `f32`; factors of products are rounded to TF32, 11 significant bits.
    TF32,
    /// As `BF16`, but products of layers read factors that are scaled and rounded to 8 bits.
    FP8,
}

impl Arithmetic {
    /// All, in the order in which messages name them.
    pub const ALL: [Arithmetic; 6] = [
        Arithmetic::F32,
        Arithmetic::F64,
        Arithmetic::BF16,
        Arithmetic::F16,
        Arithmetic::TF32,
        Arithmetic::FP8,
    ];

    /// The one of that name.
    pub fn named(name: &str) -> Option<Arithmetic> {
        Arithmetic::ALL.into_iter().find(|a| a.name() == name)
    }

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Arithmetic::F32 => "f32",
            Arithmetic::F64 => "f64",
            Arithmetic::BF16 => "bf16",
            Arithmetic::F16 => "f16",
            Arithmetic::TF32 => "tf32",
            Arithmetic::FP8 => "fp8",
        }
    }

    /// The dtype in which activations are stored.
    pub const fn stored(self) -> DType {
        match self {
            Arithmetic::F32 | Arithmetic::TF32 => DType::F32,
            Arithmetic::F64 => DType::F64,
            Arithmetic::BF16 | Arithmetic::FP8 => DType::BF16,
            Arithmetic::F16 => DType::F16,
        }
    }

    /// The dtype of parameters and sums: `f64` or `f32`.
    pub fn wide(self) -> DType {
        self.stored().wide()
    }

    /// The half type, where there is one.
    pub fn half(self) -> Option<DType> {
        Some(self.stored()).filter(|dtype| dtype.is_half())
    }
}

impl From<DType> for Arithmetic {
    /// The arithmetic whose activations are stored in a float type. Of TF32 and FP8 there is no such type.
    fn from(stored: DType) -> Arithmetic {
        match stored {
            DType::F64 => Arithmetic::F64,
            DType::BF16 => Arithmetic::BF16,
            DType::F16 => Arithmetic::F16,
            _ => Arithmetic::F32,
        }
    }
}

impl std::fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The nearest number with 11 significant bits, of two equally near the even one; what is as large as infinity becomes it.
pub fn tf32(x: f32) -> f32 {
    const DROPPED: u32 = f32::MANTISSA_DIGITS - 11;
    let bits = x.to_bits();
    let half_less_one = (1 << (DROPPED - 1)) - 1;
    let even = (bits >> DROPPED) & 1;
    let rounded = bits.wrapping_add(half_less_one + even) & !((1 << DROPPED) - 1);
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_has_eleven_bits_and_ties_go_to_even() {
        let unit = f32::EPSILON * 8192.0;
        let cases = [
            (1.0, 1.0),
            (1.0 + unit / 2.0, 1.0),
            (1.0 + unit * 1.5, 1.0 + 2.0 * unit),
            (1.0 + unit / 2.0 + f32::EPSILON, 1.0 + unit),
            (-1.0 - unit * 0.75, -1.0 - unit),
            (f32::MAX, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (f32::from_bits(0x1fff), f32::from_bits(0x2000)),
        ];
        for (x, want) in cases {
            assert_eq!(tf32(x), want, "{x:e}");
        }
        assert!(tf32(f32::NAN).is_nan() && tf32(f32::from_bits(u32::MAX)).is_nan());
        assert_eq!(tf32(-0.0).to_bits(), (-0.0f32).to_bits());
    }
}
