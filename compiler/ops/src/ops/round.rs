//! The nearest integer, of two equally near the even one (2.5 gives 2); the gradient is 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The nearest integer, of two equally near the even one (2.5 gives 2); the gradient is 0.
pub static ROUND: UnaryDef = UnaryDef {
    name: "round",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Round, x),
    derivative: |_, _, _| None,
    oracle: f64::round_ties_even,
};

unary_family!(
    "round",
    ROUND,
    "The nearest integer, of two equally near the even one (2.5 gives 2); the gradient is 0.",
    -5.0,
    5.0
);
