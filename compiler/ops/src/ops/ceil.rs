//! The least integer that is not less; the gradient is 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The least integer that is not less; the gradient is 0.
pub static CEIL: UnaryDef = UnaryDef {
    name: "ceil",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Ceil, x),
    derivative: |_, _, _| None,
    oracle: f64::ceil,
};

unary_family!("ceil", CEIL, "The least integer that is not less; the gradient is 0.", -5.0, 5.0);
