//! Loops over blocks of elements: one loop per function and type, each compiled for each instruction set.

use super::data::Element;
use super::functions::{each, unary_f32, unary_f64, unary_i32, unary_u8};
use super::instruction_set::{Level, multiversion};
use super::math::Real;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

#[inline(always)]
fn map2<A: Copy, D>(a: &[A], b: &[A], d: &mut [D], f: impl Fn(A, A) -> D) {
    for (d, (a, b)) in d.iter_mut().zip(a.iter().zip(b)) {
        *d = f(*a, *b);
    }
}

/// Functions of a map on elements of one type. All slices have one length.
pub(super) trait Arithmetic: Element + PartialEq {
    /// `d = f(a)`, for a function that takes this type.
    fn unary(level: Level, f: UnaryFn, a: &[Self], d: &mut [Self]);
    /// `d = f(a, b)`, for a function that takes this type and is no comparison.
    fn binary(level: Level, f: BinaryFn, a: &[Self], b: &[Self], d: &mut [Self]);
    /// `d = f(a, b)`, where `f` is a comparison.
    fn compare(level: Level, f: BinaryFn, a: &[Self], b: &[Self], d: &mut [u8]);
    /// A constant of this type.
    fn constant(x: f64) -> Self;
    /// Conversion to `f32`.
    fn to_f32(level: Level, a: &[Self], d: &mut [f32]);
    /// Conversion to `f64`.
    fn to_f64(level: Level, a: &[Self], d: &mut [f64]);
    /// Conversion to `i32`: truncates, and saturates; NaN gives 0.
    fn to_i32(level: Level, a: &[Self], d: &mut [i32]);
    /// Conversion to `u8`: truncates, and saturates (from `i32`: keeps the low bits); NaN gives 0.
    fn to_u8(level: Level, a: &[Self], d: &mut [u8]);
}

multiversion! {
    /// Functions of two floats.
    fn binary_real[T: Real](f: BinaryFn, a: &[T], b: &[T], d: &mut [T]) {
        match f {
            BinaryFn::Add => map2(a, b, d, |x, y| x + y),
            BinaryFn::Sub => map2(a, b, d, |x, y| x - y),
            BinaryFn::Mul => map2(a, b, d, |x, y| x * y),
            BinaryFn::Div => map2(a, b, d, |x, y| x / y),
            BinaryFn::Pow => map2(a, b, d, |x, y| x.power(y)),
            BinaryFn::Min => map2(a, b, d, |x, y| x.lesser(y)),
            BinaryFn::Max => map2(a, b, d, |x, y| x.greater(y)),
            BinaryFn::FloorDiv => map2(a, b, d, |x, y| x.floor_div(y)),
            BinaryFn::Mod => map2(a, b, d, |x, y| x.modulo(y)),
            // Of truth values, and `compare_any`.
            BinaryFn::And | BinaryFn::Or => {}
            BinaryFn::Lt | BinaryFn::Le | BinaryFn::Gt | BinaryFn::Ge | BinaryFn::Eq | BinaryFn::Ne => {}
        }
    }
}

multiversion! {
    fn compare_any[T: Comparable](f: BinaryFn, a: &[T], b: &[T], d: &mut [u8]) {
        match f {
            BinaryFn::Lt => map2(a, b, d, |x, y| u8::from(x < y)),
            BinaryFn::Le => map2(a, b, d, |x, y| u8::from(x <= y)),
            BinaryFn::Gt => map2(a, b, d, |x, y| u8::from(x > y)),
            BinaryFn::Ge => map2(a, b, d, |x, y| u8::from(x >= y)),
            BinaryFn::Eq => map2(a, b, d, |x, y| u8::from(x == y)),
            // Whoever calls it has checked that it is a comparison.
            _ => map2(a, b, d, |x, y| u8::from(x != y)),
        }
    }
}

multiversion! {
    /// `d = if c { a } else { b }`.
    pub(super) fn select[T: Element](c: &[u8], a: &[T], b: &[T], d: &mut [T]) {
        for (d, (c, (a, b))) in d.iter_mut().zip(c.iter().zip(a.iter().zip(b))) {
            *d = if *c != 0 { *a } else { *b };
        }
    }
}

multiversion! {
    /// `d = a != 0`.
    pub(super) fn truth[T: Comparable](a: &[T], d: &mut [u8]) {
        let zero = T::default();
        each(a, d, |x| u8::from(x != zero));
    }
}

multiversion! {
    fn convert[A: Convertible](a: &[A], d: &mut Converted<'_>) {
        match d {
            Converted::F32(d) => each(a, d, |x| x.f32()),
            Converted::F64(d) => each(a, d, |x| x.f64()),
            Converted::I32(d) => each(a, d, |x| x.i32()),
            Converted::U8(d) => each(a, d, |x| x.u8()),
        }
    }
}

/// The destination of converted elements, by type.
enum Converted<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    U8(&'a mut [u8]),
}

/// Types with an order.
pub(super) trait Comparable: Element + PartialOrd {}
impl<T: Element + PartialOrd> Comparable for T {}

/// Types with conversions.
trait Convertible: Element {
    fn f32(self) -> f32;
    fn f64(self) -> f64;
    fn i32(self) -> i32;
    fn u8(self) -> u8;
}

macro_rules! number {
    ($($t:ident)*) => {$(
        impl Convertible for $t {
            #[inline(always)]
            fn f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn i32(self) -> i32 {
                self as i32
            }
            #[inline(always)]
            fn u8(self) -> u8 {
                self as u8
            }
        }
    )*};
}
number!(f32 f64 i32 u8);

macro_rules! conversions {
    () => {
        fn compare(level: Level, f: BinaryFn, a: &[Self], b: &[Self], d: &mut [u8]) {
            compare_any(level, f, a, b, d);
        }
        fn to_f32(level: Level, a: &[Self], d: &mut [f32]) {
            convert(level, a, &mut Converted::F32(d));
        }
        fn to_f64(level: Level, a: &[Self], d: &mut [f64]) {
            convert(level, a, &mut Converted::F64(d));
        }
        fn to_i32(level: Level, a: &[Self], d: &mut [i32]) {
            convert(level, a, &mut Converted::I32(d));
        }
        fn to_u8(level: Level, a: &[Self], d: &mut [u8]) {
            convert(level, a, &mut Converted::U8(d));
        }
    };
}

macro_rules! real {
    ($t:ident, $unary:ident) => {
        impl Arithmetic for $t {
            fn unary(level: Level, f: UnaryFn, a: &[Self], d: &mut [Self]) {
                $unary(level, f, a, d);
            }
            fn binary(level: Level, f: BinaryFn, a: &[Self], b: &[Self], d: &mut [Self]) {
                binary_real(level, f, a, b, d);
            }
            fn constant(x: f64) -> Self {
                x as $t
            }
            conversions!();
        }
    };
}
real!(f32, unary_f32);
real!(f64, unary_f64);

/// Integers wrap around; `x / 0` is -1 (all bits set) and `x mod 0` is `x`, as XLA has it; so is what is written for
/// `i32::MIN / -1`: itself.
macro_rules! integer {
    ($t:ident, $unary:ident, $binary:ident, $pow:ident, $floor_div:ident, $mod:ident) => {
        multiversion! {
            fn $binary[](f: BinaryFn, a: &[$t], b: &[$t], d: &mut [$t]) {
                match f {
                    BinaryFn::Add => map2(a, b, d, |x, y| x.wrapping_add(y)),
                    BinaryFn::Sub => map2(a, b, d, |x, y| x.wrapping_sub(y)),
                    BinaryFn::Mul => map2(a, b, d, |x, y| x.wrapping_mul(y)),
                    BinaryFn::Div => map2(a, b, d, |x, y| if y == 0 { !0 } else { x.wrapping_div(y) }),
                    BinaryFn::Pow => map2(a, b, d, $pow),
                    BinaryFn::Min => map2(a, b, d, |x, y| x.min(y)),
                    BinaryFn::Max => map2(a, b, d, |x, y| x.max(y)),
                    BinaryFn::FloorDiv => map2(a, b, d, $floor_div),
                    BinaryFn::Mod => map2(a, b, d, $mod),
                    BinaryFn::And => map2(a, b, d, |x, y| x & y),
                    BinaryFn::Or => map2(a, b, d, |x, y| x | y),
                    // `compare_any`.
                    BinaryFn::Lt | BinaryFn::Le | BinaryFn::Gt | BinaryFn::Ge | BinaryFn::Eq | BinaryFn::Ne => {}
                }
            }
        }
        impl Arithmetic for $t {
            fn unary(level: Level, f: UnaryFn, a: &[Self], d: &mut [Self]) {
                $unary(level, f, a, d);
            }
            fn binary(level: Level, f: BinaryFn, a: &[Self], b: &[Self], d: &mut [Self]) {
                $binary(level, f, a, b, d);
            }
            fn constant(x: f64) -> Self {
                x as $t
            }
            conversions!();
        }
    };
}
integer!(i32, unary_i32, binary_i32, power_i32, floor_div_i32, modulo_i32);
integer!(u8, unary_u8, binary_u8, power_u8, floor_div_u8, modulo_u8);

fn power_u8(x: u8, y: u8) -> u8 {
    x.wrapping_pow(u32::from(y))
}

/// The true power, truncated: of a negative exponent 0 unless the base is 1 or -1 (and -1 for base 0, as for `1 / 0`).
fn power_i32(x: i32, y: i32) -> i32 {
    match (x, y) {
        (_, 0..) => x.wrapping_pow(y.unsigned_abs()),
        (1, _) => 1,
        (-1, _) => 1 - 2 * (y & 1),
        (0, _) => -1,
        _ => 0,
    }
}

fn floor_div_u8(x: u8, y: u8) -> u8 {
    x.checked_div(y).unwrap_or(!0)
}

/// The quotient rounded down.
fn floor_div_i32(x: i32, y: i32) -> i32 {
    if y == 0 {
        return !0;
    }
    let (quotient, rest) = (x.wrapping_div(y), x.wrapping_rem(y));
    if rest != 0 && (rest < 0) != (y < 0) { quotient - 1 } else { quotient }
}

fn modulo_u8(x: u8, y: u8) -> u8 {
    if y == 0 { x } else { x % y }
}

/// The rest of the quotient rounded down, of the divisor's sign.
fn modulo_i32(x: i32, y: i32) -> i32 {
    if y == 0 {
        return x;
    }
    let rest = x.wrapping_rem(y);
    if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
}
