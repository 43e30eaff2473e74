//! The exponential function.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The exponential function.
pub static EXP: UnaryDef = UnaryDef {
    name: "exp",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Exp, x),
    derivative: |_, _, y| Some(vec![y]),
    oracle: f64::exp,
};

unary_family!("exp", EXP, "The exponential function.", -2.0, 2.0);
