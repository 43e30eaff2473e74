//! The cosine of an angle in radians.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The cosine of an angle in radians.
pub static COS: UnaryDef = UnaryDef {
    name: "cos",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Cos, x),
    derivative: |g, x, _| {
        let s = g.unary(&super::SIN, x);
        Some(vec![g.unary(&super::NEG, s)])
    },
    oracle: f64::cos,
};

unary_family!("cos", COS, "The cosine of an angle in radians.", -7.0, 7.0);
