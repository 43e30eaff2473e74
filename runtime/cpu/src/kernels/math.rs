//! Arithmetic of floats. Functions of `f32` have no branches and call nothing, so that loops over them become vector code;
//! an element's result is the same in vector code and in the loop's scalar rest. Those of `f64` are the C library's.

use super::data::Element;

/// `f32` or `f64`. `FMA` says whether fused multiply-add is an instruction.
pub(super) trait Real:
    Element
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Rem<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::ops::SubAssign
    + std::ops::MulAssign
{
    /// 1.
    const ONE: Self;
    /// Neither infinite nor NaN.
    fn finite(self) -> bool;
    /// Exponential.
    fn exp<const FMA: bool>(self) -> Self;
    /// Natural logarithm.
    fn log<const FMA: bool>(self) -> Self;
    /// Power.
    fn power(self, exponent: Self) -> Self;

    /// The nearest integer; of two equally near the even one.
    fn even(self) -> Self;
    /// 0 with the sign of another number.
    fn zero_like(sign: Self) -> Self;

    /// The rest of the quotient rounded down: exact but for one rounding, of the divisor's sign; NaN where the divisor is
    /// 0 or the dividend infinite.
    #[inline(always)]
    fn modulo(self, by: Self) -> Self {
        let zero = Self::default();
        let rest = self % by;
        if rest == zero {
            Self::zero_like(by)
        } else if (rest < zero) != (by < zero) {
            rest + by
        } else {
            rest
        }
    }

    /// The quotient rounded down, also where `self / by` rounds up to an integer; by 0 it is what `/` gives.
    #[inline(always)]
    fn floor_div(self, by: Self) -> Self {
        let zero = Self::default();
        if by == zero {
            return self / by;
        }
        let rest = self % by;
        let whole = (self - rest) / by;
        let whole = if rest != zero && (rest < zero) != (by < zero) { whole - Self::ONE } else { whole };
        // `whole` is an integer but for rounding.
        if whole == zero { Self::zero_like(self / by) } else { whole.even() }
    }

    /// The greater; NaN if either is.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "the test for NaN that vectorizes")]
    fn greater(self, other: Self) -> Self {
        if self > other || self != self { self } else { other }
    }

    /// The lesser; NaN if either is.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "the test for NaN that vectorizes")]
    fn lesser(self, other: Self) -> Self {
        if self < other || self != self { self } else { other }
    }
}

/// `a * b + c`, rounded once where that is an instruction.
#[inline(always)]
pub(super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Horner's rule, highest power first.
#[inline(always)]
pub(super) fn poly<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    for k in &c[1..] {
        y = fma::<FMA>(y, x, *k);
    }
    y
}

/// ln 2 in two parts; the first has few bits, so that its products with small integers are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

impl Real for f32 {
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn finite(self) -> bool {
        self.is_finite()
    }

    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f32 {
        // Beyond these bounds the result is infinite or 0; NaN passes both tests.
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let t = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
        let n = t - ROUND;
        let k = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        let r = fma::<FMA>(n, -LN2_HIGH, x);
        let r = fma::<FMA>(n, -LN2_LOW, r);
        let p = poly::<FMA, 6>(
            r,
            [1.987_569_2e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 5e-1],
        );
        let y = fma::<FMA>(p, r * r, r) + 1.0;
        // The power of two in two factors: k goes from -150 to 128, beyond the range of one exponent.
        let half = k >> 1;
        let a = f32::from_bits((half.wrapping_add(127) << 23) as u32);
        let b = f32::from_bits((k.wrapping_sub(half).wrapping_add(127) << 23) as u32);
        y * a * b
    }

    #[inline(always)]
    fn log<const FMA: bool>(self) -> f32 {
        let small = self < f32::MIN_POSITIVE;
        let x = if small { self * 8_388_608.0 } else { self };
        let bits = x.to_bits() as i32;
        // The mantissa is taken between sqrt(1/2) and sqrt(2).
        let k = bits.wrapping_sub(0x3f35_04f3) >> 23;
        let f = f32::from_bits(bits.wrapping_sub(k << 23) as u32) - 1.0;
        let e = (if small { k.wrapping_sub(23) } else { k }) as f32;
        let p = poly::<FMA, 9>(
            f,
            [
                7.037_683_6e-2,
                -1.151_461e-1,
                1.167_699_9e-1,
                -1.242_014_1e-1,
                1.424_932_3e-1,
                -1.666_805_7e-1,
                2.000_071_5e-1,
                -2.499_999_4e-1,
                3.333_333e-1,
            ],
        );
        let z = f * f;
        let y = fma::<FMA>(e, LN2_LOW, f * z * p);
        let y = fma::<FMA>(z, -0.5, y);
        let y = fma::<FMA>(e, LN2_HIGH, f + y);
        let y = if self == f32::INFINITY { self } else { y };
        let y = if self == 0.0 { f32::NEG_INFINITY } else { y };
        if self >= 0.0 { y } else { f32::NAN }
    }

    #[inline(always)]
    fn power(self, exponent: f32) -> f32 {
        self.powf(exponent)
    }

    #[inline(always)]
    fn even(self) -> f32 {
        self.round_ties_even()
    }

    #[inline(always)]
    fn zero_like(sign: f32) -> f32 {
        0.0_f32.copysign(sign)
    }
}

impl Real for f64 {
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn finite(self) -> bool {
        self.is_finite()
    }

    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f64 {
        f64::exp(self)
    }

    #[inline(always)]
    fn log<const FMA: bool>(self) -> f64 {
        self.ln()
    }

    #[inline(always)]
    fn power(self, exponent: f64) -> f64 {
        self.powf(exponent)
    }

    #[inline(always)]
    fn even(self) -> f64 {
        self.round_ties_even()
    }

    #[inline(always)]
    fn zero_like(sign: f64) -> f64 {
        0.0_f64.copysign(sign)
    }
}
