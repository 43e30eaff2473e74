//! Formats of floating point numbers, and rounding to them once.

/// Where a number between two goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rounding {
    NearestEven,
    /// Ties away from zero.
    NearestAway,
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// By the last letter of its modifier, as in `.rn` and `.rzi`.
    pub(super) fn named(modifier: &str) -> Rounding {
        match modifier.trim_start_matches('r').trim_end_matches('i') {
            "na" | "a" => Rounding::NearestAway,
            "z" => Rounding::Zero,
            "m" => Rounding::Down,
            "p" => Rounding::Up,
            _ => Rounding::NearestEven,
        }
    }

    /// To a whole number.
    pub(super) fn whole(self, x: f64) -> f64 {
        match self {
            Rounding::NearestEven => x.round_ties_even(),
            Rounding::NearestAway => x.round(),
            Rounding::Zero => x.trunc(),
            Rounding::Down => x.floor(),
            Rounding::Up => x.ceil(),
        }
    }
}

/// A binary format: its bits of the exponent and behind the point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    exponent: u32,
    fraction: u32,
}

pub(super) const F16: Format = Format { exponent: 5, fraction: 10 };
pub(super) const BF16: Format = Format { exponent: 8, fraction: 7 };
pub(super) const TF32: Format = Format { exponent: 8, fraction: 10 };
pub(super) const F32: Format = Format { exponent: 8, fraction: 23 };
pub(super) const E4M3: Format = Format { exponent: 4, fraction: 3 };
pub(super) const E5M2: Format = Format { exponent: 5, fraction: 2 };

impl Format {
    /// The only one that is made; all ones behind the sign.
    pub(super) fn nan(self) -> u32 {
        (1 << (self.exponent + self.fraction)) - 1
    }

    fn infinity(self) -> u32 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// The bits of a number, rounded.
    pub(super) fn narrow(self, x: f64, rounding: Rounding) -> u32 {
        if x.is_nan() {
            return self.nan();
        }
        let sign = u32::from(x.is_sign_negative()) << (self.exponent + self.fraction);
        let size = x.abs();
        if size == 0.0 || size.is_infinite() {
            return sign | if size == 0.0 { 0 } else { self.infinity() };
        }
        // What a direction is to the size of a number depends on its sign.
        let rounding = match (rounding, sign != 0) {
            (Rounding::Down, true) => Rounding::Up,
            (Rounding::Up, true) => Rounding::Down,
            (other, _) => other,
        };
        let bits = self.ascending(size, rounding);
        let largest = i64::from(self.infinity());
        if bits < largest {
            return sign | bits as u32;
        }
        match rounding {
            Rounding::Zero | Rounding::Down => sign | (largest as u32 - 1),
            _ => sign | largest as u32,
        }
    }

    /// The bits of a positive number, rounded, were there no largest one.
    fn ascending(self, size: f64, rounding: Rounding) -> i64 {
        let bias = (1 << (self.exponent - 1)) - 1;
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
        // The step between neighbors is a power of two, so that this is exact.
        let steps = rounding.whole(size * power_of_two(self.fraction as i32 - exponent)) as i64;
        // The leading one of a normal number adds to the exponent.
        (i64::from(exponent + bias - 1) << self.fraction) + steps
    }

    /// The bits of the nearest number, of two equally near the even one, that are at most `most` without the sign.
    pub(super) fn finite(self, x: f32, most: u32) -> u32 {
        if x.is_nan() {
            return self.nan();
        }
        let size = f64::from(x.abs().min(f32::MAX));
        let bits = if size == 0.0 { 0 } else { self.ascending(size, Rounding::NearestEven) };
        u32::from(x.is_sign_negative()) << (self.exponent + self.fraction) | (bits as u32).min(most)
    }

    /// The number of some bits.
    pub(super) fn widen(self, bits: u32) -> f64 {
        let sign = if bits >> (self.exponent + self.fraction) & 1 == 0 { 1.0 } else { -1.0 };
        let bias = (1 << (self.exponent - 1)) - 1;
        let exponent = (bits >> self.fraction & ((1 << self.exponent) - 1)) as i32;
        let fraction = bits & ((1 << self.fraction) - 1);
        if exponent == (1 << self.exponent) - 1 {
            return if fraction == 0 { sign * f64::INFINITY } else { f64::NAN };
        }
        let leading = if exponent == 0 { 0 } else { 1 << self.fraction };
        let steps = f64::from(fraction | leading);
        sign * steps * power_of_two(exponent.max(1) - bias - self.fraction as i32)
    }
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A sum, and what it lacks: together exact.
pub(super) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    let lacks = (a - (sum - of_b)) + (b - of_b);
    (sum, if lacks.is_finite() { lacks } else { 0.0 })
}

/// A number near the exact one that any narrower format rounds as it would the exact one: the last bit of an inexact one is odd.
pub(super) fn odd((sum, lacks): (f64, f64)) -> f64 {
    if lacks == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    let is_larger = (lacks > 0.0) == (sum > 0.0);
    f64::from_bits(if is_larger { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

/// To the nearest, ties to even.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded }
}

#[inline(always)]
pub(super) fn from_bf16(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// To the nearest, ties to even.
#[inline(always)]
pub(super) fn to_f16(x: f32) -> u32 {
    F16.narrow(x.into(), Rounding::NearestEven)
}

/// Exact: scaling moves the exponent, and subnormal numbers become normal.
#[inline(always)]
pub(super) fn from_f16(bits: u32) -> f32 {
    let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let size =
        if bits & 0x7c00 == 0x7c00 { f32::from_bits((bits & 0x7fff) << 13 | 0x7f80_0000) } else { size };
    f32::from_bits(size.to_bits() | (bits & 0x8000) << 16)
}
