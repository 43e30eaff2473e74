//! Functions of one float. Those of `f32` have no branches and call nothing, so that loops over them become vector code;
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
    /// Absolute value.
    fn magnitude(self) -> Self;
    /// Square root, correctly rounded.
    fn root(self) -> Self;
    /// Exponential.
    fn exp<const FMA: bool>(self) -> Self;
    /// Natural logarithm.
    fn log<const FMA: bool>(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh<const FMA: bool>(self) -> Self;
    /// Error function.
    fn erf<const FMA: bool>(self) -> Self;
    /// Power.
    fn power(self, exponent: Self) -> Self;

    /// The greatest integer that is not greater.
    fn down(self) -> Self;
    /// The least integer that is not less.
    fn up(self) -> Self;
    /// The nearest integer; of two equally near the even one.
    fn even(self) -> Self;
    /// 0 with the sign of another number.
    fn zero_like(sign: Self) -> Self;

    /// `log(1 + x)`: the rounding of `1 + x` is undone by a factor (Goldberg 1991, theorem 4).
    #[inline(always)]
    fn log1p<const FMA: bool>(self) -> Self {
        let u = Self::ONE + self;
        let log = u.log::<FMA>();
        let y = log * (self / (u - Self::ONE));
        // Where 1 swallows x, the quotient is 0 / 0 or x / 0; of infinities it is NaN.
        let y = if u == Self::ONE { self } else { y };
        if u.finite() { y } else { log }
    }

    /// `exp(x) - 1`: the rounding of `exp(x)` is undone by a factor (Kahan; Higham 2002, section 1.14.1).
    #[inline(always)]
    fn expm1<const FMA: bool>(self) -> Self {
        let u = self.exp::<FMA>();
        let less = u - Self::ONE;
        let y = less * (self / u.log::<FMA>());
        let y = if u == Self::ONE { self } else { y };
        // Of 0 the logarithm is infinite, of infinity too.
        if less == -Self::ONE || !u.finite() { less } else { y }
    }

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

    /// -1, 0 or 1; NaN of NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        let zero = Self::default();
        if self > zero {
            Self::ONE
        } else if self < zero {
            -Self::ONE
        } else if self == zero {
            zero
        } else {
            self
        }
    }

    /// `1 / (1 + exp(-x))`; of an exponential that cannot overflow, so that small results keep their digits.
    #[inline(always)]
    fn sigmoid<const FMA: bool>(self) -> Self {
        let e = (-self.magnitude()).exp::<FMA>();
        let top = if self < Self::default() { e } else { Self::ONE };
        top / (Self::ONE + e)
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

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Horner's rule, highest power first.
#[inline(always)]
fn poly<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
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
    fn magnitude(self) -> f32 {
        self.abs()
    }

    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
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
    fn tanh<const FMA: bool>(self) -> f32 {
        let a = self.abs();
        let z = self * self;
        let p = poly::<FMA, 5>(
            z,
            [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1],
        );
        let near = fma::<FMA>(p * z, self, self);
        let far = (1.0 - 2.0 / (Real::exp::<FMA>(a + a) + 1.0)).copysign(self);
        if a < 0.625 { near } else { far }
    }

    #[inline(always)]
    fn erf<const FMA: bool>(self) -> f32 {
        let s = self * self;
        let near = poly::<FMA, 6>(
            s,
            [
                -5.967_617e-4,
                4.991_194_2e-3,
                -2.676_813_5e-2,
                1.128_199_25e-1,
                -3.761_253_4e-1,
                1.283_791_7e-1,
            ],
        );
        let near = fma::<FMA>(near, self, self);
        // At 4 the result is 1 within half a unit.
        let a = self.abs();
        let t = if a > 4.0 { 4.0 } else { a };
        let p = poly::<FMA, 7>(
            t,
            [
                -1.728_534_7e-5,
                3.831_971_3e-4,
                -3.883_964_4e-3,
                2.425_462_2e-2,
                -1.067_778_8e-1,
                -6.348_467e-1,
                -1.287_175_1e-1,
            ],
        );
        let far = (1.0 - Real::exp::<FMA>(fma::<FMA>(p, t, -t))).copysign(self);
        if a > 0.927_734_4 { far } else { near }
    }

    #[inline(always)]
    fn power(self, exponent: f32) -> f32 {
        self.powf(exponent)
    }

    #[inline(always)]
    fn down(self) -> f32 {
        self.floor()
    }

    #[inline(always)]
    fn up(self) -> f32 {
        self.ceil()
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
    fn magnitude(self) -> f64 {
        self.abs()
    }

    #[inline(always)]
    fn root(self) -> f64 {
        self.sqrt()
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
    fn tanh<const FMA: bool>(self) -> f64 {
        f64::tanh(self)
    }

    #[inline(always)]
    fn erf<const FMA: bool>(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn power(self, exponent: f64) -> f64 {
        self.powf(exponent)
    }

    #[inline(always)]
    fn down(self) -> f64 {
        self.floor()
    }

    #[inline(always)]
    fn up(self) -> f64 {
        self.ceil()
    }

    #[inline(always)]
    fn even(self) -> f64 {
        self.round_ties_even()
    }

    #[inline(always)]
    fn zero_like(sign: f64) -> f64 {
        0.0_f64.copysign(sign)
    }

    #[inline(always)]
    fn log1p<const FMA: bool>(self) -> f64 {
        self.ln_1p()
    }

    #[inline(always)]
    fn expm1<const FMA: bool>(self) -> f64 {
        self.exp_m1()
    }
}
