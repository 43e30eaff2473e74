//! What sine, cosine and tangent of `f32` are made of. They are computed in `f64`, without branches up to [`NEAR`]; beyond,
//! where the reduction to a quarter turn needs more digits of pi, by a function with exact reduction.

/// Up to here pi / 2 in two parts leaves an error below 2^-60: far below the least distance of an `f32` from a multiple of
/// pi / 2, about 2^-30.
const NEAR: f32 = 262_144.0;

#[inline(always)]
fn fma<const FMA: bool>(a: f64, b: f64, c: f64) -> f64 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// `x - n pi / 2` for the nearest `n`, and the low bits of `n`.
#[inline(always)]
fn reduced<const FMA: bool>(x: f64) -> (f64, u64) {
    // Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // The first part of pi / 2 has 25 bits, so that its products with `n` are exact.
    const HIGH: f64 = 1.570_796_310_901_641_8;
    const LOW: f64 = 1.589_325_477_352_819_7e-8;
    let t = fma::<FMA>(x, std::f64::consts::FRAC_2_PI, ROUND);
    let n = t - ROUND;
    (fma::<FMA>(n, -LOW, fma::<FMA>(n, -HIGH, x)), t.to_bits())
}

/// Sine within an eighth of a turn, to about 2^-37; -0 of -0.
#[inline(always)]
fn sine<const FMA: bool>(r: f64) -> f64 {
    let z = r * r;
    let p = fma::<FMA>(z, 2.718_311_493_989_822e-6, -1.983_933_483_609_663_2e-4);
    let p = fma::<FMA>(z, p, 8.333_329_385_889_463e-3);
    let p = fma::<FMA>(z, p, -1.666_666_664_162_652_4e-1);
    r * fma::<FMA>(z, p, 1.0)
}

/// Cosine within an eighth of a turn, to about 2^-34.
#[inline(always)]
fn cosine<const FMA: bool>(r: f64) -> f64 {
    let z = r * r;
    let p = fma::<FMA>(z, 2.439_044_879_627_741e-5, -1.388_676_377_460_993e-3);
    let p = fma::<FMA>(z, p, 4.166_662_332_373_906e-2);
    let p = fma::<FMA>(z, p, -4.999_999_972_510_031e-1);
    fma::<FMA>(z, p, 1.0)
}

/// The sine of `x` plus `turn` quarter turns.
#[inline(always)]
pub(super) fn turned<const FMA: bool>(x: f32, turn: u64) -> f32 {
    let (r, n) = reduced::<FMA>(f64::from(x));
    let n = n.wrapping_add(turn);
    let (s, c) = (sine::<FMA>(r), cosine::<FMA>(r));
    let y = if n & 1 == 0 { s } else { c };
    (if n & 2 == 0 { y } else { -y }) as f32
}

/// The tangent of `x`.
#[inline(always)]
pub(super) fn tangent<const FMA: bool>(x: f32) -> f32 {
    let (r, n) = reduced::<FMA>(f64::from(x));
    let (s, c) = (sine::<FMA>(r), cosine::<FMA>(r));
    let (top, bottom) = if n & 1 == 0 { (s, c) } else { (-c, s) };
    (top / bottom) as f32
}

/// `d = near(a)`, but `far(a)` beyond [`NEAR`]: in a second pass, so that the first is vector code.
#[inline(always)]
pub(super) fn near_or_far(a: &[f32], d: &mut [f32], near: impl Fn(f32) -> f32, far: fn(f64) -> f64) {
    let mut all_near = true;
    for (d, a) in d.iter_mut().zip(a) {
        *d = near(*a);
        all_near &= a.abs() <= NEAR;
    }
    if all_near {
        return;
    }
    for (d, a) in d.iter_mut().zip(a) {
        if a.abs() > NEAR {
            *d = far(f64::from(*a)) as f32;
        }
    }
}
