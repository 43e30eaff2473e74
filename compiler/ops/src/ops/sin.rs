//! The sine of an angle in radians.

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
    derivative: |g, x, _| Some(vec![g.unary(&super::COS, x)]),
    oracle: f64::sin,
};

unary_family!("sin", SIN, "The sine of an angle in radians.", -7.0, 7.0);
