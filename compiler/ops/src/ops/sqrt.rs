//! The square root.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The square root.
pub static SQRT: UnaryDef = UnaryDef {
    name: "sqrt",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Sqrt, x),
    derivative: |g, _, y| {
        let r = g.unary(&super::RECIP, y);
        Some(vec![g.scaled(r, 0.5)])
    },
    oracle: f64::sqrt,
};

unary_family!("sqrt", SQRT, "The square root.", 0.5, 3.0);
