//! `x * Phi(x)` with the normal distribution function, exact (Hendrycks & Gimpel 2016).

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::expr::UnaryFn;

/// `x * Phi(x)` with the normal distribution function, exact (Hendrycks & Gimpel 2016).
pub static GELU: UnaryDef = UnaryDef {
    name: "gelu",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| {
        let t = e.dtype(x);
        let (half, one) = (e.constant(0.5, t), e.constant(1.0, t));
        let root = e.constant(std::f64::consts::FRAC_1_SQRT_2, t);
        let z = e.binary(BinaryFn::Mul, x, root);
        let erf = e.unary(UnaryFn::Erf, z);
        let sum = e.binary(BinaryFn::Add, erf, one);
        let phi = e.binary(BinaryFn::Mul, sum, half);
        e.binary(BinaryFn::Mul, x, phi)
    },
    derivative: |g, x, _| {
        // Phi(x) + x * phi(x), the normal distribution function and its density.
        let dtype = g.ty(x).dtype;
        let z = g.scaled(x, std::f64::consts::FRAC_1_SQRT_2);
        let erf = g.unary(&super::ERF, z);
        let half = g.constant(0.5, dtype);
        let scaled = g.scaled(erf, 0.5);
        let below = g.sum_of(&[scaled, half]);
        let square = g.product(&[x, x]);
        let exponent = g.scaled(square, -0.5);
        let bell = g.unary(&super::EXP, exponent);
        let density = g.scaled(bell, 0.398_942_280_401_432_7);
        let slope = g.product(&[x, density]);
        Some(vec![g.sum_of(&[below, slope])])
    },
    oracle: |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
};

unary_family!(
    "gelu",
    GELU,
    "`x * Phi(x)` with the normal distribution function, exact (Hendrycks & Gimpel 2016).",
    -2.0,
    2.0
);
