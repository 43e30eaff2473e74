//! `and`, `or` and `not` of truth values.

use super::binary::{build, flat};
use crate::family::truth;
use crate::{BinaryDef, Family, Sample, Signature, UnaryDef};
use meshwright_plan::DType;
use meshwright_plan::expr::{BinaryFn, UnaryFn};

fn boolean(t: DType) -> bool {
    t == DType::Bool
}

/// Whether both are true.
pub static AND: BinaryDef = BinaryDef {
    name: "and",
    function: BinaryFn::And,
    takes: boolean,
    takes_text: "truth values",
    linear: &[],
    derivatives: flat,
    oracle: |a, b| a * b,
};

/// Whether one is true.
pub static OR: BinaryDef = BinaryDef {
    name: "or",
    function: BinaryFn::Or,
    takes: boolean,
    takes_text: "truth values",
    linear: &[],
    derivatives: flat,
    oracle: f64::max,
};

/// Whether it is false.
pub static NOT: UnaryDef = UnaryDef {
    name: "not",
    takes: boolean,
    takes_text: "truth values",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Not, x),
    derivative: |_, _, _| None,
    oracle: |x| 1.0 - x,
};

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "and",
        signature: Signature::INFIX,
        doc: "Whether both are true.",
        build: |g, c| build(&AND, g, c),
        samples: || {
            vec![
                Sample::call("and", "and", &[], vec![truth(&[("a", 5)]), truth(&[("a", 5), ("b", 3)])])
                    .flat(),
            ]
        },
    },
    Family {
        name: "or",
        signature: Signature::INFIX,
        doc: "Whether at least one is true.",
        build: |g, c| build(&OR, g, c),
        samples: || {
            vec![Sample::call("or", "or", &[], vec![truth(&[("a", 5)]), truth(&[("a", 5), ("b", 3)])]).flat()]
        },
    },
    Family {
        name: "not",
        signature: Signature::PREFIX,
        doc: "Whether it is false.",
        build: |g, c| super::unary::build(&NOT, g, c),
        samples: || vec![Sample::call("not", "not", &[], vec![truth(&[("a", 5)])]).flat()],
    },
];
