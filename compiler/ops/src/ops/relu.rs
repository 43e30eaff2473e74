//! The greater of the value and 0; the gradient at 0 is 0.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The greater of the value and 0; the gradient at 0 is 0.
pub static RELU: UnaryDef = UnaryDef {
    name: "relu",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Relu, x),
    // By the result, so that the operand need not be kept.
    derivative: |g, _, y| {
        let dtype = g.ty(y).dtype;
        let zero = g.constant(0.0, dtype);
        let above = g.binary(">", y, zero);
        Some(vec![g.cast(above, dtype)])
    },
    oracle: |x| if x <= 0.0 { 0.0 } else { x },
};

unary_family!("relu", RELU, "The greater of the value and 0; the gradient at 0 is 0.", -2.0, 2.0);
