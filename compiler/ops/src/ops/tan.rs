//! The tangent of an angle in radians.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The tangent of an angle in radians.
pub static TAN: UnaryDef = UnaryDef {
    name: "tan",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Tan, x),
    derivative: |g, _, y| {
        let square = g.product(&[y, y]);
        let one = g.constant(1.0, g.ty(y).dtype);
        Some(vec![g.sum_of(&[square, one])])
    },
    oracle: f64::tan,
};

unary_family!("tan", TAN, "The tangent of an angle in radians.", -1.2, 1.2);
