//! Rounding to 8 bits by sums and comparisons, which every backend of Burn has.

use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::ops::Binary;
use burn_backend::DType as BurnType;
use burn_ir::NumericOperationIr as Numeric;
use meshwright_plan::Fp8;

/// A function in `f32` or `f64`: half types have too few digits for its sums.
fn in_full(e: &mut GraphBuilder, a: Val, f: impl FnOnce(&mut GraphBuilder, Val, u32) -> Val) -> Val {
    let stored = e.dtype(a);
    match stored {
        BurnType::F64 => f(e, a, f64::MANTISSA_DIGITS),
        _ => {
            let wide = e.cast(a, BurnType::F32);
            let found = f(e, wide, f32::MANTISSA_DIGITS);
            e.cast(found, stored)
        }
    }
}

/// [`Fp8::round`]; the sign of 0 is lost.
pub(super) fn round(e: &mut GraphBuilder, a: Val, format: Fp8) -> Val {
    in_full(e, a, |e, a, mantissa| {
        let most = f64::from(format.greatest());
        let over = e.scalar(Binary::Gt, a, most);
        let a = e.fill(a, over, most);
        let under = e.scalar(Binary::Lt, a, -most);
        let a = e.fill(a, under, -most);
        let power = power_below(e, a, mantissa);
        let least = f64::from(format.least_normal());
        let small = e.scalar(Binary::Lt, power, least);
        let power = e.fill(power, small, least);
        let sum = e.scalar(Binary::Mul, power, format.rounding_sum(mantissa));
        let up = e.add(a, sum);
        e.sub(up, sum)
    })
}

/// [`meshwright_plan::power_of_two`].
pub(super) fn power_of_two(e: &mut GraphBuilder, a: Val) -> Val {
    in_full(e, a, power_below)
}

/// The first digit of `x`, rounded to the power of two below or above: `c - (c - x)` with `c = x (2^k + 1)`, where `k` is the
/// number of digits less one (Dekker 1971, section 5).
fn power_below(e: &mut GraphBuilder, a: Val, mantissa: u32) -> Val {
    let size = e.numeric(Numeric::Abs, a);
    // Scales the operand down where `c` would overflow.
    let large = e.scalar(Binary::Gt, size, 2f64.powi(64));
    let smaller = e.scalar(Binary::Mul, size, 2f64.powi(-32));
    let x = e.choose(large, smaller, size);
    let c = e.scalar(Binary::Mul, x, 2f64.powi(mantissa as i32 - 1) + 1.0);
    let rest = e.sub(c, x);
    let upper = e.sub(c, rest);
    let above = e.binary(Binary::Gt, upper, x);
    let half = e.scalar(Binary::Mul, upper, 0.5);
    let power = e.choose(above, half, upper);
    let larger = e.scalar(Binary::Mul, power, 2f64.powi(32));
    let power = e.choose(large, larger, power);
    let infinite = e.scalar(Binary::Gt, size, f64::from(f32::MAX));
    e.choose(infinite, size, power)
}
