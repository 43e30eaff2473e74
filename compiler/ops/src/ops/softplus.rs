//! `log(1 + exp(x))`, a relu without a kink; accurate however large or small x is.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

/// `log(1 + exp(x))`, a relu without a kink; accurate however large or small x is.
pub static SOFTPLUS: UnaryDef = UnaryDef {
    name: "softplus",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| {
        // max(x, 0) + log1p(exp(-|x|)): the exponential cannot overflow, and what it gives is not lost beside 1.
        let size = e.unary(UnaryFn::Abs, x);
        let minus = e.unary(UnaryFn::Neg, size);
        let small = e.unary(UnaryFn::Exp, minus);
        let log = e.unary(UnaryFn::Log1p, small);
        let positive = e.unary(UnaryFn::Relu, x);
        e.binary(BinaryFn::Add, positive, log)
    },
    derivative: |g, x, _| Some(vec![g.unary(&super::SIGMOID, x)]),
    oracle: |x| if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() },
};

unary_family!(
    "softplus",
    SOFTPLUS,
    "`log(1 + exp(x))`, a relu without a kink; accurate however large or small x is.",
    -30.0,
    30.0
);
