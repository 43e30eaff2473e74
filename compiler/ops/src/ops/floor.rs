//! The greatest integer that is not greater; the gradient is 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The greatest integer that is not greater; the gradient is 0.
pub static FLOOR: UnaryDef = UnaryDef {
    name: "floor",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Floor, x),
    derivative: |_, _, _| None,
    oracle: f64::floor,
};

unary_family!("floor", FLOOR, "The greatest integer that is not greater; the gradient is 0.", -5.0, 5.0);
