//! `x` above 0, else `exp(x) - 1` (Clevert et al. 2016); the gradient is continuous.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

/// `x` above 0, else `exp(x) - 1` (Clevert et al. 2016); the gradient is continuous.
pub static ELU: UnaryDef = UnaryDef {
    name: "elu",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| {
        let t = e.dtype(x);
        let zero = e.constant(0.0, t);
        let above = e.binary(BinaryFn::Gt, x, zero);
        let below = e.unary(UnaryFn::Expm1, x);
        e.select(above, x, below)
    },
    derivative: |g, _, y| {
        // exp(x) below 0, which is the result plus 1.
        let t = g.ty(y).dtype;
        let (zero, one) = (g.constant(0.0, t), g.constant(1.0, t));
        let above = g.binary(">", y, zero);
        let slope = g.sum_of(&[y, one]);
        Some(vec![g.choose(above, one, slope)])
    },
    oracle: |x| if x > 0.0 { x } else { x.exp() - 1.0 },
};

unary_family!(
    "elu",
    ELU,
    "`x` above 0, else `exp(x) - 1` (Clevert et al. 2016); the gradient is continuous.",
    -2.0,
    2.0
);
