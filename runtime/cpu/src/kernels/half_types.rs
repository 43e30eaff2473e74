//! Between the half types and the `f32` in which their values are computed.

use super::data::Element;
use super::instruction_set::multiversion;
use half::{bf16, f16};

/// A type in which values are stored, but not computed.
pub(super) trait Half: Element + PartialOrd {
    /// Greater than all numbers.
    const INFINITY: Self;
    /// Less than all numbers.
    const NEG_INFINITY: Self;
    /// The same number.
    fn wide(self) -> f32;
    /// The nearest number of this type, of two equally near the even one, as `f32`; NaN stays NaN.
    fn nearest(x: f32) -> f32;
    /// A number that is one of this type.
    fn of_nearest(x: f32) -> Self;
    /// The nearest number of this type.
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::of_nearest(Self::nearest(x))
    }
}

impl Half for bf16 {
    const INFINITY: bf16 = bf16::INFINITY;
    const NEG_INFINITY: bf16 = bf16::NEG_INFINITY;

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        let bits = x.to_bits();
        let up = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // Rounding up could carry a NaN into an infinity: a quiet one with the upper bits stays.
        f32::from_bits((if x.is_nan() { bits | 0x0040_0000 } else { up }) & 0xffff_0000)
    }

    #[inline(always)]
    fn of_nearest(x: f32) -> bf16 {
        bf16::from_bits((x.to_bits() >> 16) as u16)
    }
}

/// The sign of an `f32`.
const SIGN: u32 = 0x8000_0000;
/// The least normal number of `f16`, 2^-14; beneath it are multiples of 2^-24.
const LEAST_NORMAL: f32 = 6.103_515_6e-5;
/// 2^24.
const LEAST_INVERSE: f32 = 16_777_216.0;
/// From here on the nearest number of `f16` is infinite: half a step beyond 65504.
const TOO_LARGE: f32 = 65_520.0;

// All alternatives are computed and one is chosen, so that the loops vectorize.
impl Half for f16 {
    const INFINITY: f16 = f16::INFINITY;
    const NEG_INFINITY: f16 = f16::NEG_INFINITY;

    #[inline(always)]
    fn wide(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
        let normal = (rest << 13) + (112 << 23);
        let special = (rest << 13) | 0x7f80_0000;
        let small = (rest as i32 as f32 * (1.0 / LEAST_INVERSE)).to_bits();
        let large = if rest >= 0x7c00 { special } else { normal };
        f32::from_bits(sign | if rest < 0x400 { small } else { large })
    }

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        let sign = x.to_bits() & SIGN;
        let bits = x.to_bits() & !SIGN;
        let size = f32::from_bits(bits);
        let normal = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
        // The last place of numbers from 1/2 on is 2^-24.
        let small = ((size + 0.5) - 0.5).to_bits();
        let finite = if size < LEAST_NORMAL { small } else { normal };
        let known = if size >= TOO_LARGE { f32::INFINITY.to_bits() } else { finite };
        f32::from_bits(sign | if size.is_nan() { f32::NAN.to_bits() } else { known })
    }

    #[inline(always)]
    fn of_nearest(x: f32) -> f16 {
        let sign = x.to_bits() >> 16 & 0x8000;
        let bits = x.to_bits() & !SIGN;
        let size = f32::from_bits(bits);
        let normal = (bits >> 13).wrapping_sub(112 << 10);
        let small = (size * LEAST_INVERSE) as i32 as u32;
        let finite = if size < LEAST_NORMAL { small } else { normal };
        let known = if size == f32::INFINITY { 0x7c00 } else { finite };
        f16::from_bits((sign | if size.is_nan() { 0x7e00 } else { known }) as u16)
    }
}

multiversion! {
    /// `d = a`, rounded to what the half type holds.
    pub(super) fn round[H: Half](a: &[f32], d: &mut [f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = H::nearest(*a);
        }
    }
}

multiversion! {
    /// `d = a`.
    pub(super) fn upcast[H: Half](a: &[H], d: &mut [f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = a.wide();
        }
    }
}

multiversion! {
    /// `d = a`, where `a` holds numbers that are rounded already.
    pub(super) fn store[H: Half](a: &[f32], d: &mut [H]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = H::of_nearest(*a);
        }
    }
}

/// Evaluates `$body` with `$H` the half type of a dtype that is one.
macro_rules! by_half {
    ($dtype:expr, $H:ident => $body:expr) => {
        match $dtype {
            meshwright_plan::DType::F16 => {
                type $H = half::f16;
                $body
            }
            _ => {
                type $H = half::bf16;
                $body
            }
        }
    };
}
pub(super) use by_half;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::instruction_set::Level;
    use super::*;

    /// Numbers of all sizes, and those around the ones where rounding turns.
    fn samples() -> Vec<f32> {
        let mut xs = vec![0.0f32, 1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, 1e-40, f32::INFINITY];
        xs.extend([f32::MIN_POSITIVE, 65_503.9, 65_504.0, 65_519.99, 65_520.0, 65_536.0]);
        xs.extend((0..4000u32).map(|i| f32::from_bits(0x3f80_0000 + i * 37)));
        // Each number of `f16`, what lies in the middle between two, and the neighbors of both.
        for bits in 0..0x7c00u16 {
            let (x, next) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = if next.is_finite() { (x + next) / 2.0 } else { 65_520.0 };
            xs.extend([x, middle, middle.next_up(), middle.next_down()]);
        }
        xs.iter().flat_map(|x| [*x, -x]).collect()
    }

    #[test]
    fn rounding_is_to_nearest_even_as_half_does_it() {
        for x in samples() {
            let (n, half) = (bf16::narrow(x), bf16::from_f32(x));
            assert_eq!(n.to_bits(), half.to_bits(), "{x}");
            assert_eq!(n.wide().to_bits(), bf16::nearest(x).to_bits());
            let (n, half) = (f16::narrow(x), f16::from_f32(x));
            assert_eq!(n.to_bits(), half.to_bits(), "{x:e}");
            assert_eq!(n.wide().to_bits(), f16::nearest(x).to_bits(), "{x:e}");
        }
        for bits in [0x7fc0_0000u32, 0x7f80_0001, 0xffff_ffff, 0x7fff_ffff] {
            let x = f32::from_bits(bits);
            assert!(bf16::narrow(x).wide().is_nan() && f16::narrow(x).wide().is_nan(), "{bits:x}");
        }
    }

    #[test]
    fn every_number_of_f16_is_read_as_it_is() {
        for bits in 0..=u16::MAX {
            let h = f16::from_bits(bits);
            assert!(
                h.wide().to_bits() == h.to_f32().to_bits() || h.is_nan() && h.wide().is_nan(),
                "{bits:x}"
            );
        }
    }

    #[test]
    fn rows_are_converted_as_numbers_are() {
        fn same<H: Half + std::fmt::Debug>(level: Level) {
            let xs = samples();
            let mut rounded = vec![0.0; xs.len()];
            round::<H>(level, &xs, &mut rounded);
            let mut stored = vec![H::default(); xs.len()];
            store::<H>(level, &rounded, &mut stored);
            let mut read = vec![0.0; xs.len()];
            upcast::<H>(level, &stored, &mut read);
            for (i, x) in xs.iter().enumerate() {
                let want = H::narrow(*x);
                assert_eq!(rounded[i].to_bits(), want.wide().to_bits(), "{x:e}");
                assert!(stored[i] == want, "{x:e}: {:?} and {want:?}", stored[i]);
                assert_eq!(read[i].to_bits(), want.wide().to_bits(), "{x:e}");
            }
        }
        for level in Level::available() {
            same::<bf16>(level);
            same::<f16>(level);
        }
    }
}
