//! The error function in some twenty instructions, none of which branches: CubeCL's own has a division, an exponential of nine instructions, and
//! near 0 an error as large as its result.
//!
//! Two polynomials in place of one function, both fitted so that the greatest relative error is least: below `EDGE` of `erf(x)/x - 1` in the square of
//! `x`, from there on of the logarithm of `1 - erf(x)` to base 2, which beyond 4 is nothing beside 1. The error is 1.2 threads in the last
//! place of `f32`.
//!
//! Beside values of half types the latter does for all but the smallest numbers, with fewer terms.

use super::exp2::exp2;
use cubecl::prelude::*;

const EDGE: f32 = 0.9;
/// From the constant on.
const NEAR: [f32; 6] = [0.12837915, -0.37612534, 0.1128223, -0.026781958, 0.005016228, -0.00061112916];
const FAR: [f32; 7] =
    [-0.00025605995, -1.6269988, -0.9190829, -0.15009427, 0.032139085, -0.004408322, 0.0002844744];

/// Of the logarithm of `1 - erf(x)` divided by `x`: `erf` is within 1e-6 of itself, but for what subtracting from 1 costs.
const ROUGH: [f32; 5] = [-1.6279082, -0.9183765, -0.14893697, 0.029797284, -0.0029961055];
/// Below, `erf(x)` is a multiple of `x`, within 2e-5 of itself.
const STRAIGHT: f32 = 0.0078125;

/// The error function.
#[cube]
pub(super) fn erf(x: f32) -> f32 {
    let size = x.abs();
    let near = fma(polynomial(x * x, comptime!(NEAR.to_vec())), x, x);
    // What is no number stays none.
    let within = select(size > 4.0f32, 4.0f32, size);
    let far = 1.0f32 - exp2(polynomial(within, comptime!(FAR.to_vec())));
    select(size < EDGE, near, select(x < 0.0f32, -far, far))
}

/// The error function within 2e-5 of itself.
#[cube]
pub(super) fn rough_erf(x: f32) -> f32 {
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
