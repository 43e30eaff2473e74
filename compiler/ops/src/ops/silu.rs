//! `x * sigmoid(x)`, also called swish (Elfwing et al. 2017).

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;
use meshwright_plan::expr::BinaryFn;

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
        // s + x * s * (1 - s)
        let s = g.unary(&super::SIGMOID, x);
        let first = g.product(&[x, s]);
        let second = g.product(&[x, s, s]);
        let minus = g.unary(&super::NEG, second);
        Some(g.sum_of(&[s, first, minus]))
    },
    oracle: |x| x / (1.0 + (-x).exp()),
};

unary_family!("silu", SILU, "`x * sigmoid(x)`, also called swish (Elfwing et al. 2017).", -2.0, 2.0);
