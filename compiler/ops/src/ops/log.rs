//! The natural logarithm.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The natural logarithm.
pub static LOG: UnaryDef = UnaryDef {
    name: "log",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Log, x),
    derivative: |g, x, _| Some(vec![g.unary(&super::RECIP, x)]),
    oracle: f64::ln,
};

unary_family!("log", LOG, "The natural logarithm.", 0.5, 3.0);
