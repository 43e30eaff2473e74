//! `log(1 + x)`, accurate near 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// `log(1 + x)`, accurate near 0.
pub static LOG1P: UnaryDef = UnaryDef {
    name: "log1p",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Log1p, x),
    derivative: |g, x, _| {
        let one = g.constant(1.0, g.ty(x).dtype);
        let sum = g.sum_of(&[x, one]);
        Some(vec![g.unary(&super::RECIP, sum)])
    },
    oracle: f64::ln_1p,
};

unary_family!("log1p", LOG1P, "`log(1 + x)`, accurate near 0.", -0.7, 3.0);
