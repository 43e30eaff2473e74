//! The error function in some twenty instructions, none of which branches: CubeCL's own has a division, an exponential of nine instructions, and
//! near 0 an error as large as its result.
//!
//! Two polynomials in place of one function, both fitted so that the greatest relative error is least: below `EDGE` of `erf(x)/x - 1` in the square of
//! `x`, from there on of the logarithm of `1 - erf(x)` to base 2, which beyond 4 is nothing beside 1. The error is 1.2 units in the last
//! place of `f32`.

use super::exp2::exp2;
use cubecl::prelude::*;

const EDGE: f32 = 0.9;
/// From the constant on.
const NEAR: [f32; 6] = [0.12837915, -0.37612534, 0.1128223, -0.026781958, 0.005016228, -0.00061112916];
const FAR: [f32; 7] =
    [-0.00025605995, -1.6269988, -0.9190829, -0.15009427, 0.032139085, -0.004408322, 0.0002844744];

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
