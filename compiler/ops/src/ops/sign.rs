//! -1, 0 or 1; its gradient is 0.

use super::unary::{signed, unary_family};
use crate::UnaryDef;
use meshwright_plan::expr::UnaryFn;

/// -1, 0 or 1; its gradient is 0.
pub static SIGN: UnaryDef = UnaryDef {
    name: "sign",
    takes: signed,
    takes_text: "signed numbers",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Sign, x),
    derivative: |_, _, _| None,
    oracle: |x| {
        if x > 0.0 {
            1.0
        } else if x < 0.0 {
            -1.0
        } else {
            x
        }
    },
};

unary_family!("sign", SIGN, "-1, 0 or 1; its gradient is 0.", -2.0, 2.0);
