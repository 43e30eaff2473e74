//! `//` and `%` of tensors: the quotient rounded down and what it leaves, as in Python.

use super::binary::{build, flat};
use super::unary::signed;
use crate::family::{between, float, integer};
use crate::{BinaryDef, Family, Sample, Signature};
use meshwright_plan::expr::BinaryFn;

/// The quotient rounded down.
pub static FLOOR_DIV: BinaryDef = BinaryDef {
    name: "//",
    function: BinaryFn::FloorDiv,
    takes: signed,
    takes_text: "numbers",
    linear: &[],
    derivatives: flat,
    oracle: floor_div,
};

/// What the quotient rounded down leaves; it has the sign of the divisor.
pub static MOD: BinaryDef = BinaryDef {
    name: "%",
    function: BinaryFn::Mod,
    takes: signed,
    takes_text: "numbers",
    linear: &[],
    // x % y = x - (x // y) * y, and x // y is constant but for its jumps.
    derivatives: |g, a, b, _, need| {
        let db = need[1].then(|| {
            let times = g.binary("//", a, b);
            vec![g.unary(&super::NEG, times)]
        });
        [Some(Vec::new()), db]
    },
    oracle: modulo,
};

/// The quotient rounded down; of an infinity it is NaN, as the rest is.
fn floor_div(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let whole = ((a - rest) / b).round();
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { whole - 1.0 } else { whole }
}

/// The rest of the quotient rounded down, of the divisor's sign: of a finite number by an infinity it is the number, or that
/// infinity where the signs differ.
fn modulo(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
}

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "//",
        signature: Signature::INFIX,
        doc: "`x//y`: the quotient rounded down, of floats or of `i32`, broadcast by name. Of `i32`, `x//0` is -1; of floats \
              it is what `x / 0` is. The gradient is 0.",
        build: |g, c| build(&FLOOR_DIV, g, c),
        samples: || samples("//"),
    },
    Family {
        name: "%",
        signature: Signature::INFIX,
        doc: "`x % y`: what `x//y` leaves, of the sign of `y`, broadcast by name. Of `i32`, `x % 0` is `x`; of floats it is \
              NaN. The gradient goes to `x`, and to `y` times `-(x//y)`.",
        build: |g, c| build(&MOD, g, c),
        samples: || samples("%"),
    },
];

fn samples(name: &'static str) -> Vec<Sample> {
    let wide = |dims: &[(&'static str, usize)]| between(dims, -7.0, 7.0);
    vec![
        Sample::call(
            "by positive",
            name,
            &[],
            vec![wide(&[("a", 5), ("b", 3)]), between(&[("b", 3)], 0.7, 2.0)],
        ),
        Sample::call("by negative", name, &[], vec![wide(&[("a", 4)]), between(&[("b", 3)], -2.0, -0.7)]),
        Sample::call(
            "of integers",
            name,
            &[],
            vec![integer(&[("a", 7), ("b", 3)], -9.0, 10.0), integer(&[("b", 3), ("a", 7)], -3.0, 4.0)],
        )
        .flat(),
        Sample::call("mixed signs", name, &[], vec![float(&[("a", 5)]), float(&[("a", 5)])]),
    ]
}
