//! The inverse of the normal distribution function, in `f64` with `+ - * /` and `sqrt` alone.

/// Quantile of the standard normal distribution, for `p` in (0, 1): algorithm AS 241, PPND16 (Wichura 1988), good to
/// about one part in 10^15.
pub fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * horner(&QUANTILE[0].0, r) / horner(&QUANTILE[0].1, r);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let x = if r <= 5.0 {
        horner(&QUANTILE[1].0, r - 1.6) / horner(&QUANTILE[1].1, r - 1.6)
    } else {
        horner(&QUANTILE[2].0, r - 5.0) / horner(&QUANTILE[2].1, r - 5.0)
    };
    if q < 0.0 { -x } else { x }
}

/// Natural logarithm of a positive normal number, with `+ - * /` alone; good to a few units in the last place.
pub fn ln(x: f64) -> f64 {
    /// ln 2 in two parts; the first has enough zero bits at its end for its product with an exponent to be exact.
    const LN2: (f64, f64) = (6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10);
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh s with |s| <= 0.172: the twelfth term is below 1e-18.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = (1..=11).rev().fold(0.0, |sum, k| (sum + 1.0 / f64::from(2 * k + 1)) * z);
    let e = f64::from(exponent);
    e * LN2.0 + (2.0 * s + (2.0 * s * series + e * LN2.1))
}

fn horner(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// Numerator and denominator, lowest power first.
pub type Rational = ([f64; 8], [f64; 8]);

/// Of [`normal_quantile`]: in the center, beyond it, and far from it.
#[rustfmt::skip]
pub const QUANTILE: [Rational; 3] = [(
    [3.387_132_872_796_366_5, 1.331_416_678_917_843_8e2, 1.971_590_950_306_551_3e3, 1.373_169_376_550_946e4,
     4.592_195_393_154_987e4, 6.726_577_092_700_87e4, 3.343_057_558_358_813e4, 2.509_080_928_730_122_7e3],
    [1.0, 4.231_333_070_160_091e1, 6.871_870_074_920_579e2, 5.394_196_021_424_751e3,
     2.121_379_430_158_659_7e4, 3.930_789_580_009_271e4, 2.872_908_573_572_194_3e4, 5.226_495_278_852_854e3],
), (
    [1.423_437_110_749_683_5, 4.630_337_846_156_546, 5.769_497_221_460_691, 3.647_848_324_763_204_5,
     1.270_458_252_452_368_4, 2.417_807_251_774_506e-1, 2.272_384_498_926_918_4e-2, 7.745_450_142_783_414e-4],
    [1.0, 2.053_191_626_637_759, 1.676_384_830_183_803_8, 6.897_673_349_851e-1,
     1.481_039_764_274_800_8e-1, 1.519_866_656_361_645_7e-2, 5.475_938_084_995_345e-4, 1.050_750_071_644_416_9e-9],
), (
    [6.657_904_643_501_103, 5.463_784_911_164_114, 1.784_826_539_917_291_3, 2.965_605_718_285_048_7e-1,
     2.653_218_952_657_612_4e-2, 1.242_660_947_388_078_4e-3, 2.711_555_568_743_487_6e-5, 2.010_334_399_292_288_1e-7],
    [1.0, 5.998_322_065_558_88e-1, 1.369_298_809_227_358e-1, 1.487_536_129_085_061_5e-2,
     7.868_691_311_456_133e-4, 1.846_318_317_510_054_8e-5, 1.421_511_758_316_446e-7, 2.044_263_103_389_939_8e-15],
)];
