//! The sine of an angle in radians, and the functions of sine and cosine, each the other's derivative.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The sine of an angle in radians.
pub static SIN: UnaryDef = UnaryDef {
    name: "sin",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Sin, x),
    derivative: |g, x, _| Some(vec![g.unary(&COS, x)]),
    oracle: f64::sin,
};

/// The cosine of an angle in radians.
pub static COS: UnaryDef = UnaryDef {
    name: "cos",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Cos, x),
    derivative: |g, x, _| {
        let s = g.unary(&SIN, x);
        Some(vec![g.unary(&super::NEG, s)])
    },
    oracle: f64::cos,
};

unary_family!("sin", SIN, "The sine of an angle in radians.", -7.0, 7.0);
