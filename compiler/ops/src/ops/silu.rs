//! `x * sigmoid(x)`, also called swish (Elfwing et al. 2017).

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::BinaryFn;
use meshwright_plan::expr::UnaryFn;

/// `x * sigmoid(x)`, also called swish (Elfwing et al. 2017).
pub static SILU: UnaryDef = UnaryDef {
    name: "silu",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| {
        let s = e.unary(UnaryFn::Sigmoid, x);
        e.binary(BinaryFn::Mul, x, s)
    },
    derivative: |g, x, _| {
        // s * (1 + x * (1 - s)): of large x exactly 1, where s + x * s - x * s * s would cancel.
        let s = g.unary(&super::SIGMOID, x);
        let minus = g.unary(&super::NEG, s);
        let one = g.constant(1.0, g.ty(x).dtype);
        let rest = g.sum_of(&[one, minus]);
        let slope = g.product(&[x, rest]);
        let inner = g.sum_of(&[one, slope]);
        Some(vec![g.product(&[s, inner])])
    },
    oracle: |x| x / (1.0 + (-x).exp()),
};

unary_family!("silu", SILU, "`x * sigmoid(x)`, also called swish (Elfwing et al. 2017).", -2.0, 2.0);
