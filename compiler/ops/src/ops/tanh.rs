//! The hyperbolic tangent.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The hyperbolic tangent.
pub static TANH: UnaryDef = UnaryDef {
    name: "tanh",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Tanh, x),
    derivative: |g, _, y| {
        let one = g.constant(1.0, g.ty(y).dtype);
        let square = g.product(&[y, y]);
        let minus = g.unary(&super::NEG, square);
        Some(vec![g.sum_of(&[minus, one])])
    },
    oracle: f64::tanh,
};

unary_family!("tanh", TANH, "The hyperbolic tangent.", -2.0, 2.0);
