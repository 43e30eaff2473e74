//! The magnitude; the gradient at 0 is 0.

use super::unary::{signed, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The magnitude; the gradient at 0 is 0.
pub static ABS: UnaryDef = UnaryDef {
    name: "abs",
    takes: signed,
    takes_text: "signed numbers",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Abs, x),
    derivative: |g, x, _| Some(vec![g.unary(&super::SIGN, x)]),
    oracle: f64::abs,
};

unary_family!("abs", ABS, "The magnitude; the gradient at 0 is 0.", -2.0, 2.0);
