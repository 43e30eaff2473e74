//! The product along dims, with a gradient that is right where elements are 0.

use crate::family::{SampleInput, between, float, integer};
use crate::signature::DIMS;
use crate::{Family, Graph, Id, OpError, Reduce, Sample, Signature};
use meshwright_plan::{DType, Dim, Monoid};
use std::sync::Arc;

/// How it is written. It is a fold like a sum: where a dim is split, the devices' products are multiplied.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "prod",
    signature: Signature::over(&[DIMS]),
    doc: "`prod[d, e](x)`: the product along dims, of nothing 1. Its gradient is right also where elements are 0.",
    build: |g, c| {
        let x = c.unified(g, true)?;
        g.add_op(Arc::new(Reduce { monoid: Monoid::Prod, dims: c.dims() }), &x)
    },
    samples: || {
        vec![
            Sample::call("inner", "prod", &["b"], vec![float(&[("a", 5), ("b", 3)])]),
            Sample::call("outer", "prod", &["a"], vec![float(&[("a", 5), ("b", 3)])]),
            Sample::call("both", "prod", &["a", "b"], vec![between(&[("a", 5), ("b", 3)], 0.5, 1.5)]),
            Sample::call("integers", "prod", &["a"], vec![integer(&[("a", 7), ("b", 3)], -3.0, 4.0)]).flat(),
            Sample::new("one element is 0", with_zeros(), |g, x| some_zero(g, x, &[2.0])),
            Sample::new("two elements are 0", with_zeros(), |g, x| some_zero(g, x, &[1.0, 4.0])),
            Sample::call(
                "all elements are 0",
                "prod",
                &["a"],
                vec![between(&[("a", 3), ("b", 2)], 0.0, 0.0)],
            ),
        ]
    },
}];

/// Zeros that move for the gradient, and other numbers.
fn with_zeros() -> Vec<SampleInput> {
    vec![between(&[("a", 5), ("b", 3)], 0.0, 0.0), float(&[("a", 5), ("b", 3)])]
}

/// The product along the first dim of numbers that are 0 at some positions.
fn some_zero(g: &mut Graph, x: &[Id], at: &[f64]) -> Result<Id, OpError> {
    let dim = g.ty(x[0]).dims[0];
    let (here, mut rest) = (g.index(dim), x[1]);
    for position in at {
        let position = g.constant(*position, DType::I32);
        let other = g.binary("!=", here, position);
        rest = g.masked(other, rest);
    }
    let factors = g.sum_of(&[x[0], rest]);
    g.add_op(Arc::new(Reduce { monoid: Monoid::Prod, dims: vec![dim] }), &[factors])
}

/// The cotangent of the operand of a product: for each element the product of all others. Where no element of a product is
/// 0, that is the product by the element; where one is, it gets the product of the rest and the others nothing; where
/// several are, none gets any. So it takes folds alone, and a split dim stays split.
pub(super) fn gradient(g: &mut Graph, x: Id, dims: &[Dim], dy: Id) -> Id {
    let t = g.ty(x).dtype;
    let (none, one) = (g.constant(0.0, t), g.constant(1.0, t));
    let zero = g.binary("==", x, none);
    let counted = g.cast(zero, t);
    let zeros = g.reduce(Monoid::Sum, counted, dims);
    let kept = g.choose(zero, one, x);
    let rest = g.reduce(Monoid::Prod, kept, dims);
    let (no_zero, one_zero) = (g.binary("==", zeros, none), g.binary("==", zeros, one));
    let others = g.binary("/", rest, kept);
    let at_zero = g.masked(one_zero, rest);
    let elsewhere = g.masked(no_zero, others);
    let factor = g.choose(zero, at_zero, elsewhere);
    g.product(&[dy, factor])
}
