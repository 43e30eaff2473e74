//! `x * x`.

use super::unary::{signed, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::BinaryFn;

/// `x * x`.
pub static SQUARE: UnaryDef = UnaryDef {
    name: "square",
    takes: signed,
    takes_text: "numbers",
    linear: false,
    expr: |e, x| e.binary(BinaryFn::Mul, x, x),
    derivative: |g, x, _| Some(vec![g.scaled(x, 2.0)]),
    oracle: |x| x * x,
};

unary_family!("square", SQUARE, "`x * x`.", -2.0, 2.0);
