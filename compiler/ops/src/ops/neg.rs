//! The negative.

use super::unary::{signed, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The negative.
pub static NEG: UnaryDef = UnaryDef {
    name: "neg",
    takes: signed,
    takes_text: "signed numbers",
    linear: true,
    expr: |e, x| e.unary(UnaryFn::Neg, x),
    derivative: |g, x, _| Some(vec![g.constant(-1.0, g.ty(x).dtype)]),
    oracle: |x| -x,
};

unary_family!("neg", NEG, "The negative.", -2.0, 2.0);
