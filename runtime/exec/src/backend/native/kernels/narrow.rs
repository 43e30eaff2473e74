//! Between `bf16` and the `f32` in which it is computed.

use super::level::multiversion;
use half::bf16;

/// The bits of the nearest `bf16`, of two equally near the even one; NaN stays NaN.
#[inline(always)]
fn nearest(x: f32) -> u32 {
    let bits = x.to_bits();
    let up = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // Rounding up could carry a NaN into an infinity: a quiet one with the upper bits stays.
    (if x.is_nan() { bits | 0x0040_0000 } else { up }) & 0xffff_0000
}

/// The same number.
#[inline(always)]
pub(super) fn wide(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// The nearest `bf16`.
#[inline(always)]
pub(super) fn narrow(x: f32) -> bf16 {
    bf16::from_bits((nearest(x) >> 16) as u16)
}

multiversion! {
    /// `d = a`, rounded to what `bf16` holds.
    pub(super) fn round[](a: &[f32], d: &mut [f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = f32::from_bits(nearest(*a));
        }
    }
}

multiversion! {
    /// `d = a`.
    pub(super) fn upcast[](a: &[bf16], d: &mut [f32]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = wide(*a);
        }
    }
}

multiversion! {
    /// `d = a`, where `a` holds numbers that are rounded already.
    pub(super) fn store[](a: &[f32], d: &mut [bf16]) {
        for (d, a) in d.iter_mut().zip(a) {
            *d = bf16::from_bits((a.to_bits() >> 16) as u16);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even_as_half_does_it() {
        let mut xs =
            vec![0.0f32, -0.0, 1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, -f32::MAX, 1e-40];
        xs.extend([f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE]);
        xs.extend((0..4000u32).map(|i| f32::from_bits(0x3f80_0000 + i * 37)));
        for x in xs {
            let (n, half) = (narrow(x), bf16::from_f32(x));
            assert_eq!(n.to_bits(), half.to_bits(), "{x}");
            assert_eq!(wide(n).to_bits(), nearest(x));
        }
        for bits in [0x7fc0_0000u32, 0x7f80_0001, 0xffff_ffff, 0x7fff_ffff] {
            assert!(wide(narrow(f32::from_bits(bits))).is_nan(), "{bits:x}");
        }
    }
}
