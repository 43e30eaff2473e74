//! Division, powers, minimum and maximum. (Sums and products are `add.rs` and `contract.rs`.)

use super::binary::build;
use super::unary::{floats, signed};
use crate::family::{between, float};
use crate::{BinaryDef, Family, Form, Sample};
use meshwright_plan::expr::BinaryFn;

/// Division of floats.
pub static DIV: BinaryDef = BinaryDef {
    name: "/",
    function: BinaryFn::Div,
    takes: floats,
    takes_text: "floats",
    linear: &[0],
    derivatives: |g, _, b, y, need| {
        let r = g.unary(&super::RECIP, b);
        let db = need[1].then(|| {
            let n = g.unary(&super::NEG, y);
            vec![n, r]
        });
        [Some(vec![r]), db]
    },
    oracle: |a, b| a / b,
};

/// Powers of floats.
pub static POW: BinaryDef = BinaryDef {
    name: "pow",
    function: BinaryFn::Pow,
    takes: floats,
    takes_text: "floats",
    linear: &[],
    derivatives: |g, a, b, y, need| {
        let t = g.ty(a).dtype;
        let da = need[0].then(|| {
            let one = g.constant(-1.0, t);
            let less = g.sum_of(&[b, one]);
            let p = g.binary("pow", a, less);
            vec![b, p]
        });
        let db = need[1].then(|| {
            let l = g.unary(&super::LOG, a);
            vec![y, l]
        });
        [da, db]
    },
    oracle: f64::powf,
};

/// The lesser of two; of equal ones the gradient goes to the first.
pub static MIN: BinaryDef = BinaryDef {
    name: "min",
    function: BinaryFn::Min,
    takes: signed,
    takes_text: "numbers",
    linear: &[],
    derivatives: |g, a, b, _, need| extreme(g, a, b, "<=", ">", need),
    oracle: |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) },
};

/// The greater of two; of equal ones the gradient goes to the first.
pub static MAX: BinaryDef = BinaryDef {
    name: "max",
    function: BinaryFn::Max,
    takes: signed,
    takes_text: "numbers",
    linear: &[],
    derivatives: |g, a, b, _, need| extreme(g, a, b, ">=", "<", need),
    oracle: |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) },
};

fn extreme(
    g: &mut crate::Graph,
    a: crate::Id,
    b: crate::Id,
    first: &str,
    second: &str,
    need: [bool; 2],
) -> [Option<Vec<crate::Id>>; 2] {
    let t = g.ty(a).dtype;
    let mut side = |name: &str| {
        let c = g.binary(name, a, b);
        vec![g.cast(c, t)]
    };
    let da = need[0].then(|| side(first));
    let db = need[1].then(|| side(second));
    [da, db]
}

/// How they are written. `min` and `max` over dims are in `reduce.rs`; the resolver tells them apart by form.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "/",
        form: Form::Operator(2),
        doc: "Division of floats, broadcast by name.",
        build: |g, c| build(&DIV, g, c),
        samples: || {
            vec![
                Sample::call("a / b", "/", &[], vec![float(&[("a", 5), ("b", 3)]), between(&[("b", 3)], 0.5, 2.0)]),
                Sample::call("outer", "/", &[], vec![float(&[("a", 4)]), between(&[("b", 3)], 0.5, 2.0)]),
            ]
        },
    },
    Family {
        name: "pow",
        form: Form::Function(2),
        doc: "`pow(x, y)`: x to the power of y, floats, broadcast by name. Also `x ** y`.",
        build: |g, c| build(&POW, g, c),
        samples: || {
            vec![Sample::call("pow", "pow", &[], vec![between(&[("a", 5)], 0.5, 2.0), float(&[("a", 5), ("b", 2)])])]
        },
    },
    Family {
        name: "min",
        form: Form::Function(2),
        doc: "`min(x, y)`: the lesser, broadcast by name; NaN where either is. Of equal ones the gradient goes to the first.",
        build: |g, c| build(&MIN, g, c),
        samples: || vec![Sample::call("min", "min", &[], vec![float(&[("a", 5), ("b", 2)]), float(&[("b", 2)])])],
    },
    Family {
        name: "max",
        form: Form::Function(2),
        doc: "`max(x, y)`: the greater, broadcast by name; NaN where either is. Of equal ones the gradient goes to the first.",
        build: |g, c| build(&MAX, g, c),
        samples: || vec![Sample::call("max", "max", &[], vec![float(&[("a", 5), ("b", 2)]), float(&[("b", 2)])])],
    },
];
