//! The error function in about twenty instructions without branches. CubeCL's own has a division, an exponential of nine
//! instructions, and near 0 an error as large as its result.
//!
//! Two polynomials, both fitted for the least maximum relative error. Below `EDGE`: `erf(x)/x - 1` in the square of `x`. From
//! `EDGE` on: the logarithm of `1 - erf(x)` to base 2; beyond 4, `1 - erf(x)` is negligible. The error is 1.2 units in the last
//! place of `f32`.
//!
//! For values of half types the second polynomial, with fewer terms, is precise enough for all but the smallest numbers.

use super::exp2::exp2;
use cubecl::prelude::*;

const EDGE: f32 = 0.9;
/// Coefficients, constant term first.
const NEAR: [f32; 6] = [0.12837915, -0.37612534, 0.1128223, -0.026781958, 0.005016228, -0.00061112916];
const FAR: [f32; 7] =
    [-0.00025605995, -1.6269988, -0.9190829, -0.15009427, 0.032139085, -0.004408322, 0.0002844744];

/// Coefficients of `log2(1 - erf(x)) / x`: `erf` is within a relative error of 1e-6, apart from the rounding of the subtraction
/// from 1.
const ROUGH: [f32; 5] = [-1.6279082, -0.9183765, -0.14893697, 0.029797284, -0.0029961055];
/// Below it, `erf(x)` is a multiple of `x`, within a relative error of 2e-5.
const STRAIGHT: f32 = 0.0078125;

/// The error function.
#[cube]
pub(crate) fn erf(x: f32) -> f32 {
    let size = x.abs();
    let near = fma(polynomial(x * x, comptime!(NEAR.to_vec())), x, x);
    // NaN stays NaN.
    let within = select(size > 4.0f32, 4.0f32, size);
    let far = 1.0f32 - exp2(polynomial(within, comptime!(FAR.to_vec())));
    select(size < EDGE, near, select(x < 0.0f32, -far, far))
}

/// The error function, within a relative error of 2e-5.
#[cube]
pub(crate) fn rough_erf(x: f32) -> f32 {
    let size = x.abs();
    let straight = x * comptime!(1.0 + NEAR[0]);
    let far = 1.0f32 - exp2(size * polynomial(size, comptime!(ROUGH.to_vec())));
    select(size < STRAIGHT, straight, select(x < 0.0f32, -far, far))
}

#[cube]
fn polynomial(x: f32, #[comptime] of: Vec<f32>) -> f32 {
    let degree = comptime!(of.len() - 1);
    let mut sum = comptime!(of[degree]).runtime();
    #[unroll]
    for i in 0..degree {
        sum = fma(sum, x, comptime!(of[degree - 1 - i]).runtime());
    }
    sum
}
