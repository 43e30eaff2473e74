//! `1.0507 x` above 0, else `1.0507 * 1.6733 * (exp(x) - 1)`: keeps mean 0 and variance 1 (Klambauer et al. 2017).

use super::unary::{floats, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

/// The fixed point of Klambauer et al. 2017, equation 14.
const ALPHA: f64 = 1.673_263_242_354_377_2;
const SCALE: f64 = 1.050_700_987_355_480_5;

/// `1.0507 x` above 0, else `1.0507 * 1.6733 * (exp(x) - 1)`: keeps mean 0 and variance 1 (Klambauer et al. 2017).
pub static SELU: UnaryDef = UnaryDef {
    name: "selu",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| {
        let t = e.dtype(x);
        let zero = e.constant(0.0, t);
        let above = e.binary(BinaryFn::Gt, x, zero);
        let (scale, low) = (e.constant(SCALE, t), e.constant(SCALE * ALPHA, t));
        let plus = e.binary(BinaryFn::Mul, x, scale);
        let below = e.unary(UnaryFn::Expm1, x);
        let minus = e.binary(BinaryFn::Mul, below, low);
        e.select(above, plus, minus)
    },
    derivative: |g, _, y| {
        // Below 0 it is scale * alpha * exp(x), which is the result plus scale * alpha.
        let t = g.ty(y).dtype;
        let (zero, scale, low) = (g.constant(0.0, t), g.constant(SCALE, t), g.constant(SCALE * ALPHA, t));
        let above = g.binary(">", y, zero);
        let slope = g.sum_of(&[y, low]);
        Some(vec![g.choose(above, scale, slope)])
    },
    oracle: |x| 1.050_700_987_355_480_5 * if x > 0.0 { x } else { 1.673_263_242_354_377_2 * (x.exp() - 1.0) },
};

unary_family!(
    "selu",
    SELU,
    "`1.0507 x` above 0, else `1.0507 * 1.6733 * (exp(x) - 1)`: keeps mean 0 and variance 1 (Klambauer et al. 2017).",
    -2.0,
    2.0
);
