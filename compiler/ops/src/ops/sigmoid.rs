//! The logistic function, `1 / (1 + exp(-x))`.

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// The logistic function, `1 / (1 + exp(-x))`.
pub static SIGMOID: UnaryDef = UnaryDef {
    name: "sigmoid",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Sigmoid, x),
    derivative: |g, _, y| {
        let square = g.product(&[y, y]);
        let minus = g.unary(&super::NEG, square);
        Some(vec![g.sum_of(&[y, minus])])
    },
    oracle: |x| 1.0 / (1.0 + (-x).exp()),
};

unary_family!("sigmoid", SIGMOID, "The logistic function, `1 / (1 + exp(-x))`.", -2.0, 2.0);
