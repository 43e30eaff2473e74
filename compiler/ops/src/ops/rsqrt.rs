//! The reciprocal of the square root.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The reciprocal of the square root.
pub static RSQRT: UnaryDef = UnaryDef {
    name: "rsqrt",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Rsqrt, x),
    derivative: |g, _, y| {
        // The cube of the result may not fit where that of a norm, times what it divides, does.
        let square = g.product(&[y, y]);
        Some(vec![y, g.scaled(square, -0.5)])
    },
    oracle: |x| 1.0 / x.sqrt(),
};

unary_family!("rsqrt", RSQRT, "The reciprocal of the square root.", 0.5, 3.0);
