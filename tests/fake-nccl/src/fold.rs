//! Reductions, left to right.

/// Bytes of an element of NCCL's type; none where there is no such type here.
pub(crate) fn size(dtype: i32) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

pub(crate) const SUM: i32 = 0;
const PROD: i32 = 1;
const MAX: i32 = 2;
const MIN: i32 = 3;

fn each<const N: usize>(a: &mut [u8], b: &[u8], f: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (a, b) in a.chunks_exact_mut(N).zip(b.chunks_exact(N)) {
        let mut x = [0; N];
        x.copy_from_slice(a);
        let mut y = [0; N];
        y.copy_from_slice(b);
        a.copy_from_slice(&f(x, y));
    }
}

/// The first NaN, else the better one, else the first.
fn better_of<T>(a: T, b: T, better: bool, a_nan: bool, b_nan: bool) -> T {
    if better || (b_nan && !a_nan) { b } else { a }
}

macro_rules! float {
    ($t:ty, $op:expr, $a:expr, $b:expr) => {
        each($a, $b, |a, b| {
            let (a, b) = (<$t>::from_ne_bytes(a), <$t>::from_ne_bytes(b));
            let r = match $op {
                SUM => a + b,
                PROD => a * b,
                MAX => better_of(a, b, b > a, a.is_nan(), b.is_nan()),
                _ => better_of(a, b, b < a, a.is_nan(), b.is_nan()),
            };
            r.to_ne_bytes()
        })
    };
}

macro_rules! whole {
    ($t:ty, $op:expr, $a:expr, $b:expr) => {
        each($a, $b, |a, b| {
            let (a, b) = (<$t>::from_ne_bytes(a), <$t>::from_ne_bytes(b));
            let r = match $op {
                SUM => a.wrapping_add(b),
                PROD => a.wrapping_mul(b),
                MAX => a.max(b),
                _ => a.min(b),
            };
            r.to_ne_bytes()
        })
    };
}

/// Two bytes as `f32`: how they are read, and how the nearest is made.
type HalfType = (fn([u8; 2]) -> f32, fn(f32) -> [u8; 2]);

const BF16: HalfType = (wide_bf16, narrow_bf16);
const F16: HalfType = (wide_f16, narrow_f16);

fn wide_bf16(x: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(x)) << 16)
}

fn wide_f16(x: [u8; 2]) -> f32 {
    let bits = u16::from_ne_bytes(x);
    let (exponent, digits) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let size = match exponent {
        0 => digits * 2f32.powi(-24),
        31 if digits > 0.0 => f32::NAN,
        31 => f32::INFINITY,
        _ => (digits + 1024.0) * 2f32.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

/// To the nearest, ties to even.
fn narrow_f16(x: f32) -> [u8; 2] {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let size = x.abs();
    let bits = if size.is_nan() {
        0x7e00
    } else if size >= 65_520.0 {
        0x7c00
    } else {
        // So many steps of the last place; carrying into the next exponent is right as it is.
        let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
        let steps = (f64::from(size) * 2f64.powi(10 - exponent)).round_ties_even() as u16;
        steps + ((exponent + 14) as u16) * 1024
    };
    (sign | bits).to_ne_bytes()
}

/// To the nearest, ties to even.
fn narrow_bf16(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    if x.is_nan() {
        return (((bits >> 16) | 0x40) as u16).to_ne_bytes();
    }
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    ((rounded >> 16) as u16).to_ne_bytes()
}

fn half((wide, narrow): HalfType, op: i32, a: &mut [u8], b: &[u8]) {
    each(a, b, |a, b| {
        let (a, b) = (wide(a), wide(b));
        narrow(match op {
            SUM => a + b,
            PROD => a * b,
            MAX => better_of(a, b, b > a, a.is_nan(), b.is_nan()),
            _ => better_of(a, b, b < a, a.is_nan(), b.is_nan()),
        })
    });
}

/// Folds `b` into `a`; false where there is no such reduction.
pub(crate) fn fold(op: i32, dtype: i32, a: &mut [u8], b: &[u8]) -> bool {
    if ![SUM, PROD, MAX, MIN].contains(&op) {
        return false;
    }
    match dtype {
        0 => whole!(i8, op, a, b),
        1 => whole!(u8, op, a, b),
        2 => whole!(i32, op, a, b),
        3 => whole!(u32, op, a, b),
        4 => whole!(i64, op, a, b),
        5 => whole!(u64, op, a, b),
        7 => float!(f32, op, a, b),
        8 => float!(f64, op, a, b),
        6 => half(F16, op, a, b),
        9 => half(BF16, op, a, b),
        _ => return false,
    }
    true
}
