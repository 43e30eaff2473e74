//! One divided by the value.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// One divided by the value.
pub static RECIP: UnaryDef = UnaryDef {
    name: "recip",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Recip, x),
    derivative: |g, _, y| Some(vec![y, g.unary(&super::NEG, y)]),
    oracle: |x| 1.0 / x,
};

unary_family!("recip", RECIP, "One divided by the value.", 0.5, 3.0);
