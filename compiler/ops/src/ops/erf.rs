//! The error function.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The error function.
pub static ERF: UnaryDef = UnaryDef {
    name: "erf",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Erf, x),
    derivative: |g, x, _| {
        let square = g.product(&[x, x]);
        let minus = g.unary(&super::NEG, square);
        let bell = g.unary(&super::EXP, minus);
        Some(vec![g.scaled(bell, std::f64::consts::FRAC_2_SQRT_PI)])
    },
    oracle: libm::erf,
};

unary_family!("erf", ERF, "The error function.", -2.0, 2.0);
