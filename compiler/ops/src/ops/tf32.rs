//! The nearest number of TF32: what tensor cores read of a factor in `f32`.

use super::unary::{Unary, floats};
use crate::family::{between, no_spelling};
use crate::{Family, Graph, Id, Sample, Signature, UnaryDef};
use meshwright_plan::expr::UnaryFn;

/// The nearest number of TF32, which has 11 significant bits. A pass puts it before products, behind autodiff: its gradient is 0.
pub static TF32: UnaryDef = UnaryDef {
    name: "tf32",
    takes: floats,
    takes_text: "floats",
    linear: false,
    expr: |e, x| e.unary(UnaryFn::Tf32, x),
    derivative: |_, _, _| None,
    oracle: |x| f64::from(meshwright_plan::tf32(x as f32)),
};

/// Programs of `tf32` have it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "tf32",
    signature: Signature::SYNTAX,
    doc: "The nearest number of TF32.",
    build: no_spelling,
    samples: || {
        let make = |g: &mut Graph, x: &[Id]| Ok(g.op(Unary(&TF32), &[x[0]]));
        vec![Sample::new("11 bits", vec![between(&[("a", 5), ("b", 3)], -5.0, 5.0)], make)]
    },
}];
