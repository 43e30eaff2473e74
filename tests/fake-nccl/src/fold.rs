//! Reductions, left to right.

/// Bytes of an element of NCCL's type; none where there is no such type here.
pub(crate) fn size(dtype: i32) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        9 => Some(2),
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

fn wide(x: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_ne_bytes(x)) << 16)
}

/// To the nearest, ties to even.
fn narrow(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    if x.is_nan() {
        return (((bits >> 16) | 0x40) as u16).to_ne_bytes();
    }
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    ((rounded >> 16) as u16).to_ne_bytes()
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
        9 => each(a, b, |a, b| {
            let (a, b) = (wide(a), wide(b));
            narrow(match op {
                SUM => a + b,
                PROD => a * b,
                MAX => better_of(a, b, b > a, a.is_nan(), b.is_nan()),
                _ => better_of(a, b, b < a, a.is_nan(), b.is_nan()),
            })
        }),
        _ => return false,
    }
    true
}
