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
    derivative: |g, x, _| {
        let dtype = g.ty(x).dtype;
        let zero = g.constant(0.0, dtype);
        let above = g.binary(">", x, zero);
        Some(g.cast(above, dtype))
    },
    oracle: |x| if x > 0.0 { x } else { x * 0.0 },
};

unary_family!("relu", RELU, "The greater of the value and 0; the gradient at 0 is 0.", -2.0, 2.0);
