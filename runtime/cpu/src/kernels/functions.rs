//! The kernels of scalar functions: a row for each dtype that a function takes. Those of `f32` have no branches and call
//! nothing, so that loops over them become vector code; those of `f64` are the meaning that the table of functions gives.

use super::instruction_set::multiversion;
use super::math::{Real, fma, poly};
use super::trig::{near_or_far, tangent, turned};
use meshwright_plan::Fp8;
use meshwright_plan::expr::{Domain, UnaryFn};

/// A kernel of each element.
#[inline(always)]
pub(super) fn each<A: Copy, D>(a: &[A], d: &mut [D], f: impl Fn(A) -> D) {
    for (d, a) in d.iter_mut().zip(a) {
        *d = f(*a);
    }
}

/// A kernel of whole slices.
#[inline(always)]
fn slices<T>(a: &[T], d: &mut [T], f: impl Fn(&[T], &mut [T])) {
    f(a, d);
}

/// Whether the rows are the functions of these domains, all of them and no other.
const fn complete(rows: &[UnaryFn], domains: &[Domain]) -> bool {
    let (mut i, mut complete) = (0, true);
    while i < UnaryFn::ALL.len() {
        let f = UnaryFn::ALL[i];
        let (mut k, mut listed) = (0, false);
        while k < rows.len() {
            listed |= rows[k] as usize == f as usize;
            k += 1;
        }
        let (mut k, mut taken) = (0, false);
        while k < domains.len() {
            taken |= domains[k] as usize == f.domain() as usize;
            k += 1;
        }
        complete &= listed == taken;
        i += 1;
    }
    complete
}

/// Defines `d = f(a)` for elements of one type, from a row for each function: its name, whether the kernel is one of `each`
/// element or of whole `slices`, and the kernel. A function without its row does not compile.
macro_rules! functions {
    ($name:ident($t:ty) of $($domain:ident)|+ { $($f:ident $how:ident $kernel:expr;)* }) => {
        multiversion! {
            /// `d = f(a)`, for a function that takes this type.
            pub(super) fn $name[](f: UnaryFn, a: &[$t], d: &mut [$t]) {
                match f {
                    $(UnaryFn::$f => $how(a, d, $kernel),)*
                    // One of another dtype: no map with it can be prepared.
                    _ => {}
                }
            }
        }
        const _: () = assert!(
            complete(&[$(UnaryFn::$f),*], &[$(Domain::$domain),+]),
            "the rows differ from the functions that take this type"
        );
    };
}

/// The functions of floats; the rows are those of `f32`.
macro_rules! float_functions {
    ($($f:ident $how:ident $kernel:expr;)*) => {
        functions! { unary_f32(f32) of Float | Number { $($f $how $kernel;)* } }
        functions! { unary_f64(f64) of Float | Number { $($f each |x| UnaryFn::$f.of(x);)* } }
    };
}

float_functions! {
    Neg each |x| -x;
    Relu each |x| if x <= 0.0 { 0.0 } else { x };
    Sqrt each |x| x.sqrt();
    Rsqrt each |x| 1.0 / x.sqrt();
    Recip each |x| 1.0 / x;
    Exp each Real::exp::<FMA>;
    Log each Real::log::<FMA>;
    Abs each |x| x.abs();
    Sign each |x| {
        if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else if x == 0.0 {
            0.0
        } else {
            x
        }
    };
    Tanh each |x| {
        let a = x.abs();
        let z = x * x;
        let p = poly::<FMA, 5>(
            z,
            [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1],
        );
        let near = fma::<FMA>(p * z, x, x);
        let far = (1.0 - 2.0 / (Real::exp::<FMA>(a + a) + 1.0)).copysign(x);
        if a < 0.625 { near } else { far }
    };
    Sigmoid each |x| {
        let e = Real::exp::<FMA>(-x.abs());
        let top = if x < 0.0 { e } else { 1.0 };
        top / (1.0 + e)
    };
    Erf each |x| {
        let s = x * x;
        let near = poly::<FMA, 6>(
            s,
            [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
        );
        let near = fma::<FMA>(near, x, x);
        // At 4 the result is 1 within half a unit.
        let a = x.abs();
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
        let far = (1.0 - Real::exp::<FMA>(fma::<FMA>(p, t, -t))).copysign(x);
        if a > 0.927_734_4 { far } else { near }
    };
    Sin slices |a, d| near_or_far(a, d, |x| turned::<FMA>(x, 0), libm::sin);
    Cos slices |a, d| near_or_far(a, d, |x| turned::<FMA>(x, 1), libm::cos);
    Tan slices |a, d| near_or_far(a, d, tangent::<FMA>, libm::tan);
    // The rounding of `1 + x` is undone by a factor (Goldberg 1991, theorem 4).
    Log1p each |x| {
        let u = 1.0 + x;
        let log = Real::log::<FMA>(u);
        let y = log * (x / (u - 1.0));
        // Where 1 swallows x, the quotient is 0 / 0 or x / 0; of infinities it is NaN.
        let y = if u == 1.0 { x } else { y };
        if u.is_finite() { y } else { log }
    };
    // The rounding of `exp(x)` is undone by a factor (Kahan; Higham 2002, section 1.14.1).
    Expm1 each |x| {
        let u = Real::exp::<FMA>(x);
        let less = u - 1.0;
        let y = less * (x / Real::log::<FMA>(u));
        let y = if u == 1.0 { x } else { y };
        // Of 0 the logarithm is infinite, of infinity too.
        if less == -1.0 || !u.is_finite() { less } else { y }
    };
    Floor each |x| x.floor();
    Ceil each |x| x.ceil();
    Round each |x| x.round_ties_even();
    Tf32 each meshwright_plan::tf32;
    RoundE4m3 each |x| Fp8::E4M3.round(x);
    RoundE5m2 each |x| Fp8::E5M2.round(x);
    PowerOfTwo each meshwright_plan::power_of_two;
}

// Integers wrap around.
functions! {
    unary_i32(i32) of Number {
        Neg each |x| x.wrapping_neg();
        Relu each |x| x.max(0);
        Abs each |x| x.wrapping_abs();
        Sign each |x| x.signum();
    }
}

functions! {
    unary_u8(u8) of Number {
        Neg each |x| x.wrapping_neg();
        Relu each |x| x;
        Abs each |x| x;
        Sign each |x| x.min(1);
    }
}

functions! {
    unary_bool(u8) of Truth {
        Not each |x| u8::from(x == 0);
    }
}
