//! Rounding to floats of 8 bits, and the powers of two that scale a tensor for it.

use super::unary::{Unary, floats};
use crate::family::{between, no_spelling};
use crate::{Family, Graph, Id, Sample, Signature, UnaryDef};
use meshwright_plan::Fp8;
use meshwright_plan::expr::UnaryFn;

/// The nearest number of E4M3. Passes put it into products, behind autodiff: its gradient is 0.
pub static ROUND_E4M3: UnaryDef = UnaryDef {
    name: "round_e4m3",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::RoundE4m3, x),
    derivative: |_, _, _| None,
    oracle: |x| f64::from(Fp8::E4M3.round(x as f32)),
};

/// The nearest number of E5M2, likewise.
pub static ROUND_E5M2: UnaryDef = UnaryDef {
    name: "round_e5m2",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::RoundE5m2, x),
    derivative: |_, _, _| None,
    oracle: |x| f64::from(Fp8::E5M2.round(x as f32)),
};

/// The greatest power of two that is not greater than the magnitude.
pub static POWER_OF_TWO: UnaryDef = UnaryDef {
    name: "power_of_two",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::PowerOfTwo, x),
    derivative: |_, _, _| None,
    oracle: |x| f64::from(meshwright_plan::power_of_two(x as f32)),
};

/// Programs of `fp8` have them.
pub(crate) static FAMILY: &[Family] = &[
    family(&ROUND_E4M3, "The nearest number of E4M3, a float of 8 bits: at most 448.", || {
        samples(&ROUND_E4M3)
    }),
    family(&ROUND_E5M2, "The nearest number of E5M2, a float of 8 bits: at most 57344.", || {
        samples(&ROUND_E5M2)
    }),
    family(&POWER_OF_TWO, "The greatest power of two that is not greater than the magnitude.", || {
        samples(&POWER_OF_TWO)
    }),
];

const fn family(def: &'static UnaryDef, doc: &'static str, samples: fn() -> Vec<Sample>) -> Family {
    Family { name: def.name, signature: Signature::SYNTAX, doc, build: no_spelling, samples }
}

fn samples(def: &'static UnaryDef) -> Vec<Sample> {
    let make = move |g: &mut Graph, x: &[Id]| Ok(g.op(Unary(def), &[x[0]]));
    vec![Sample::new("8 bits", vec![between(&[("a", 5), ("b", 3)], -5.0, 5.0)], make)]
}
