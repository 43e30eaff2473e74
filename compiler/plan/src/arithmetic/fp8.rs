//! Floats of 8 bits, in `f32`: the numbers of both formats (Micikevicius et al. 2022, "FP8 formats for deep learning"), and the powers of two
//! that tensors are scaled by.

/// A format of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fp8 {
    /// 4 bits of the exponent, 3 after the point; no infinity. For factors of forward products.
    E4M3,
    /// 5 bits of the exponent, 2 after the point. For gradients.
    E5M2,
}

impl Fp8 {
    /// Both.
    pub const ALL: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Fp8::E4M3 => "e4m3",
            Fp8::E5M2 => "e5m2",
        }
    }

    /// The greatest number.
    pub const fn greatest(self) -> f32 {
        match self {
            Fp8::E4M3 => 448.0,
            Fp8::E5M2 => 57344.0,
        }
    }

    /// The least number with all digits. Below it numbers are as far apart as there.
    pub const fn least_normal(self) -> f32 {
        match self {
            Fp8::E4M3 => 1.0 / 64.0,
            Fp8::E5M2 => 1.0 / 16384.0,
        }
    }

    /// Digits after the point.
    pub const fn digits(self) -> u32 {
        match self {
            Fp8::E4M3 => 3,
            Fp8::E5M2 => 2,
        }
    }

    /// The exponent of 1 in a code.
    pub const fn bias(self) -> u32 {
        match self {
            Fp8::E4M3 => 7,
            Fp8::E5M2 => 15,
        }
    }

    /// The code of a number of the format: its sign, its exponent, its digits. NaN has the code with all bits of both.
    pub fn code(self, x: f32) -> u8 {
        let (sign, size) = ((x.to_bits() >> 24) as u8 & 0x80, x.abs());
        let shift = f32::MANTISSA_DIGITS - 1 - self.digits();
        let code = if x.is_nan() {
            NAN_CODE
        } else if size < self.least_normal() {
            (size * self.codes_of_one()) as u32
        } else {
            (size.to_bits() >> shift) - ((F32_BIAS - self.bias()) << self.digits())
        };
        sign | code as u8
    }

    /// The number of a code; NaN and infinities of the format too.
    pub fn number(self, code: u8) -> f32 {
        let bits = u32::from(code & 0x7f);
        let (exponent, fraction) = (bits >> self.digits(), bits & ((1 << self.digits()) - 1));
        let all = (1 << (7 - self.digits())) - 1;
        let size = match self {
            Fp8::E4M3 if bits == NAN_CODE => f32::NAN,
            Fp8::E5M2 if exponent == all => {
                if fraction == 0 {
                    f32::INFINITY
                } else {
                    f32::NAN
                }
            }
            _ if exponent == 0 => fraction as f32 / self.codes_of_one(),
            _ => {
                let shift = f32::MANTISSA_DIGITS - 1 - self.digits();
                f32::from_bits((bits + ((F32_BIAS - self.bias()) << self.digits())) << shift)
            }
        };
        if code & 0x80 == 0 { size } else { -size }
    }

    /// The number by which a magnitude below the least normal number is its code.
    pub const fn codes_of_one(self) -> f32 {
        (1u32 << (self.bias() - 1 + self.digits())) as f32
    }

    /// How many times the power of two below a number is added to it and subtracted again, in floats of `mantissa` digits: of the sum the last
    /// digit is the last one of the format, and hardware rounds sums to nearest, ties to even.
    pub const fn rounding_sum(self, mantissa: u32) -> f64 {
        1.5 * (1u64 << (mantissa - 1 - self.digits())) as f64
    }

    /// The nearest number of the format, of two equally near the even one; what is greater than all, infinities too, is the greatest. NaN stays.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        let (most, least) = (self.greatest(), self.least_normal());
        let size = x.abs();
        let size = if size > most { most } else { size };
        let power = f32::from_bits(size.to_bits() & EXPONENT);
        let power = if power > least { power } else { least };
        let sum = power * self.rounding_sum(f32::MANTISSA_DIGITS) as f32;
        ((size + sum) - sum).copysign(x)
    }
}

/// The code of NaN without its sign, in both formats.
const NAN_CODE: u32 = 0x7f;

/// The exponent of 1 in an `f32`.
const F32_BIAS: u32 = 127;

/// The bits of the exponent of an `f32`.
const EXPONENT: u32 = 0x7f80_0000;

/// The greatest power of two that is not greater than the magnitude; 0 where that is below the least normal number of `f32`.
#[inline(always)]
pub fn power_of_two(x: f32) -> f32 {
    if x.is_nan() { x } else { f32::from_bits(x.to_bits() & EXPONENT) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The number of a code, as the formats are defined; `None` where it is none or infinite.
    fn number(format: Fp8, code: u8) -> Option<f64> {
        let digits = format.digits();
        let bits = u32::from(code & 0x7f);
        let (exponent, fraction) = (bits >> digits, bits & ((1 << digits) - 1));
        let (bias, special) = match format {
            Fp8::E4M3 => (7, bits == 0x7f),
            Fp8::E5M2 => (15, exponent == 31),
        };
        let unit = f64::from(1u32 << digits);
        let power = |e: i32| 2f64.powi(e);
        let size = match exponent {
            0 => f64::from(fraction) / unit * power(1 - bias),
            e => (1.0 + f64::from(fraction) / unit) * power(e as i32 - bias),
        };
        (!special).then_some(if code & 0x80 == 0 { size } else { -size })
    }

    /// All numbers that are not negative, ascending: the place of a number is its code.
    fn numbers(format: Fp8) -> Vec<f64> {
        (0..0x80).filter_map(|code| number(format, code)).collect()
    }

    /// The nearest by looking at all.
    fn nearest(format: Fp8, x: f64) -> f64 {
        let all = numbers(format);
        let off = |code: &usize| (all[*code] - x.abs()).abs();
        let best = (0..all.len()).min_by(|a, b| off(a).total_cmp(&off(b)).then((a % 2).cmp(&(b % 2))));
        all[best.unwrap()].copysign(x)
    }

    #[test]
    fn each_of_256_codes_is_a_number_that_stays_or_none() {
        for format in Fp8::ALL {
            let known: Vec<f64> = (0..=0xff).filter_map(|code| number(format, code)).collect();
            assert_eq!(known.len(), if format == Fp8::E4M3 { 254 } else { 248 }, "{format:?}");
            for x in known {
                let got = format.round(x as f32);
                assert_eq!((f64::from(got), got.is_sign_negative()), (x, x.is_sign_negative()), "{format:?}");
            }
            for code in 0..=0xff {
                let (got, want) = (format.number(code), number(format, code));
                match want {
                    Some(x) => assert_eq!((f64::from(got), format.code(got)), (x, code), "{format:?}"),
                    None => assert!(!got.is_finite(), "{format:?} of {code:#x}"),
                }
            }
            for nan in [f32::NAN, -f32::NAN] {
                assert!(format.number(format.code(nan)).is_nan() && format.code(nan) & 0x7f == 0x7f);
            }
            let all = numbers(format);
            assert_eq!(all.last(), Some(&f64::from(format.greatest())));
            assert_eq!(all[1 << format.digits()], f64::from(format.least_normal()));
        }
    }

    #[test]
    fn what_is_between_two_numbers_goes_to_the_nearest_and_ties_to_the_even_one() {
        for format in Fp8::ALL {
            let all = numbers(format);
            for (code, pair) in all.windows(2).enumerate() {
                let middle = (pair[0] + pair[1]) as f32 / 2.0;
                let even = pair[code % 2] as f32;
                let (less, more) = (middle.next_down(), middle.next_up());
                for sign in [1.0, -1.0] {
                    let got = [less, middle, more].map(|x| format.round(sign * x) * sign);
                    assert_eq!(got, [pair[0] as f32, even, pair[1] as f32], "{format:?} at {middle:e}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_every_size_go_to_the_nearest() {
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Exponents from -30 to 20.
            let (sign, exponent, fraction) =
                (state >> 63, 97 + (state >> 40) % 50, (state >> 33) & 0x7f_ffff);
            let x = f32::from_bits((sign << 31) as u32 | (exponent << 23) as u32 | fraction as u32);
            for format in Fp8::ALL {
                assert_eq!(f64::from(format.round(x)), nearest(format, x.into()), "{format:?} of {x:e}");
            }
        }
    }

    #[test]
    fn what_is_too_large_is_the_greatest_number_and_nan_stays() {
        for format in Fp8::ALL {
            let most = format.greatest();
            for x in [most.next_up(), most * 1.07, most * 2.0, f32::MAX, f32::INFINITY] {
                assert_eq!((format.round(x), format.round(-x)), (most, -most), "{format:?} of {x:e}");
            }
            assert!(format.round(f32::NAN).is_nan() && format.round(-f32::NAN).is_nan());
            assert_eq!(format.round(f32::MIN_POSITIVE).to_bits(), 0);
            assert_eq!(format.round(-f32::MIN_POSITIVE).to_bits(), (-0.0f32).to_bits());
        }
    }

    #[test]
    fn a_power_of_two_is_the_greatest_below() {
        let cases =
            [(1.0, 1.0), (1.999, 1.0), (-2.0, 2.0), (-7.5, 4.0), (0.3, 0.25), (0.0, 0.0), (3e-39, 0.0)];
        for (x, want) in cases {
            assert_eq!(power_of_two(x), want, "{x}");
        }
        assert_eq!(power_of_two(f32::NEG_INFINITY), f32::INFINITY);
        assert_eq!(power_of_two(f32::MAX), 2f32.powi(127));
        assert!(power_of_two(f32::NAN).is_nan());
    }
}
