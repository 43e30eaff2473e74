//! `exp(x) - 1`, accurate near 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// `exp(x) - 1`, accurate near 0.
pub static EXPM1: UnaryDef = UnaryDef {
    name: "expm1",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Expm1, x),
    derivative: |g, _, y| {
        let one = g.constant(1.0, g.ty(y).dtype);
        Some(vec![g.sum_of(&[y, one])])
    },
    oracle: f64::exp_m1,
};

unary_family!("expm1", EXPM1, "`exp(x) - 1`, accurate near 0.", -2.0, 2.0);
