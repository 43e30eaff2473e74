//! Division, powers, minimum and maximum. (Sums and products are `add.rs` and `contract.rs`.)

use super::binary::build;
use super::unary::{floats, signed};
use crate::family::{between, float};
use crate::{BinaryDef, Family, Graph, Id, OpCall, OpError, Sample, Signature, Unary, Value};
use meshwright_plan::DType;
use meshwright_plan::expr::BinaryFn;
use std::sync::Arc;

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
        let da = match g.constant_value(b) {
            _ if !need[0] => None,
            // Without powers where they are not needed: 0 * 0 ** -1 would be NaN.
            Some(0.0) => None,
            Some(1.0) => Some(vec![b]),
            Some(2.0) => Some(vec![b, a]),
            // The power below may not fit where this one, times what it divides, does.
            Some(n) if n < 0.0 => {
                let r = g.unary(&super::RECIP, a);
                Some(vec![b, y, r])
            }
            Some(n) => {
                let less = g.constant(n - 1.0, t);
                let p = g.binary("pow", a, less);
                Some(vec![b, p])
            }
            None => Some(by_base(g, a, b, t)),
        };
        let db = need[1].then(|| {
            // y * log(x), and 0 where the base is 0: as its limit is, and not 0 * -inf.
            let (zero, one) = (g.constant(0.0, t), g.constant(1.0, t));
            let none = g.binary("==", a, zero);
            let base = g.choose(none, one, a);
            let l = g.unary(&super::LOG, base);
            vec![y, l]
        });
        [da, db]
    },
    oracle: f64::powf,
};

/// `pow` of a call: `x ** 1` is `x`, `x ** 2` its square.
fn build_pow(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    match c.args[..] {
        [Value::Tensor(x), Value::Number(n)] if g.ty(x).dtype.is_float() && [1.0, 2.0].contains(&n) => {
            if n == 1.0 { Ok(x) } else { g.add_op(Arc::new(Unary(&super::SQUARE)), &[x]) }
        }
        _ => build(&POW, g, c),
    }
}

/// `y * x ** (y - 1)`, 0 where the exponent is 0, whatever the base.
fn by_base(g: &mut Graph, a: Id, b: Id, t: DType) -> Vec<Id> {
    let one = g.constant(-1.0, t);
    let less = g.sum_of(&[b, one]);
    let p = g.binary("pow", a, less);
    let zero = g.constant(0.0, t);
    let some = g.binary("!=", b, zero);
    let p = g.masked(some, p);
    vec![b, p]
}

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

fn extreme(g: &mut Graph, a: Id, b: Id, first: &str, second: &str, need: [bool; 2]) -> [Option<Vec<Id>>; 2] {
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
        signature: Signature::INFIX,
        doc: "Division of floats, broadcast by name.",
        build: |g, c| build(&DIV, g, c),
        samples: || {
            vec![
                Sample::call(
                    "a / b",
                    "/",
                    &[],
                    vec![float(&[("a", 5), ("b", 3)]), between(&[("b", 3)], 0.5, 2.0)],
                ),
                Sample::call("outer", "/", &[], vec![float(&[("a", 4)]), between(&[("b", 3)], 0.5, 2.0)]),
            ]
        },
    },
    Family {
        name: "pow",
        signature: Signature::BINARY,
        doc: "`pow(x, y)`: x to the power of y, floats, broadcast by name. Also `x ** y`.",
        build: build_pow,
        samples: || {
            let to = |n: f64| {
                move |g: &mut Graph, x: &[Id]| {
                    build_pow(g, &OpCall::of(vec![Value::Tensor(x[0]), Value::Number(n)], DType::F64))
                }
            };
            // Bases of both signs: no logarithm may be taken of them.
            let signed = || vec![float(&[("a", 5), ("b", 3)])];
            vec![
                Sample::call(
                    "pow",
                    "pow",
                    &[],
                    vec![between(&[("a", 5)], 0.5, 2.0), float(&[("a", 5), ("b", 2)])],
                ),
                Sample::new("to 0", signed(), to(0.0)),
                Sample::new("to 1", signed(), to(1.0)),
                Sample::new("to 2", signed(), to(2.0)),
                Sample::new("to 3", signed(), to(3.0)),
                Sample::new("to -1", vec![between(&[("a", 5)], 0.5, 2.0)], to(-1.0)),
            ]
        },
    },
    Family {
        name: "min",
        signature: Signature::BINARY,
        doc: "`min(x, y)`: the lesser, broadcast by name; NaN where either is. Of equal ones the gradient goes to the first.",
        build: |g, c| build(&MIN, g, c),
        samples: || {
            vec![Sample::call("min", "min", &[], vec![float(&[("a", 5), ("b", 2)]), float(&[("b", 2)])])]
        },
    },
    Family {
        name: "max",
        signature: Signature::BINARY,
        doc: "`max(x, y)`: the greater, broadcast by name; NaN where either is. Of equal ones the gradient goes to the first.",
        build: |g, c| build(&MAX, g, c),
        samples: || {
            vec![Sample::call("max", "max", &[], vec![float(&[("a", 5), ("b", 2)]), float(&[("b", 2)])])]
        },
    },
];
