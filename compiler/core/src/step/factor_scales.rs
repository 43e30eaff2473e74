//! Numbers that all copies of a factor share: its scale, its inverse, the logarithms of a history.
//!
//! A layer's matmul reads its factors where it stands: a weight as the slice of a stack of all layers, in the forward loop and
//! in the backward loop; an activation as it is, and in the backward loop as the slice of the forward loop's stack. These are
//! copies of one value, under other names, along more dims or in another dtype. A number that depends on a factor alone is
//! computed of the value, in the scope of the value, for all positions of the loops that slice it. It then crosses the same
//! boundaries as the value: a loop stacks and slices a number for each iteration.

use meshwright_ops::{
    Cast, Class, Crossing, Expand, Graph, Id, Kind, Node, Origin, POWER_OF_TWO, RECIP, RepeatId, Unary,
};
use meshwright_plan::{DType, Dim, Fp8, Phase};
use meshwright_sorted::SortedMap;

/// A value and the dims along which it has a factor for each position: those of loops that slice it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FactorSource {
    /// The value.
    pub(crate) value: Id,
    /// Dims of the value.
    pub(crate) along: Vec<Dim>,
}

/// `N` numbers for each factor of a graph.
#[derive(Debug)]
pub(crate) struct FactorNumbers<const N: usize> {
    /// By source, format, and the dtype in which the factor is stored.
    known: SortedMap<(FactorSource, Fp8, DType), [Id; N]>,
    /// Numbers on the other side of a boundary.
    crossed: SortedMap<(RepeatId, Crossing, Id), Id>,
}

impl<const N: usize> FactorNumbers<N> {
    pub(crate) fn new() -> Self {
        FactorNumbers { known: SortedMap::new(), crossed: SortedMap::new() }
    }

    /// The numbers of a factor `x`, in the scope of `x` or around it. `make` computes those of a source, along its dims `along`:
    /// of the value in the dtype of `x`, in the scope of the value.
    pub(crate) fn of(
        &mut self,
        g: &mut Graph,
        x: Id,
        format: Fp8,
        make: impl FnOnce(&mut Graph, Id, &[Dim]) -> [Id; N],
    ) -> [Id; N] {
        let stored = g.ty(x).dtype;
        let (source, boundaries) = source(g, x);
        let around = (g.cursor.clone(), g.scope);
        let key = (source, format, stored);
        let mut numbers = match self.known.get(&key) {
            Some(known) => *known,
            None => {
                let FactorSource { value, along } = &key.0;
                let Node { origin, scope, .. } = g.node(*value).clone();
                let name = format!("{stored}({})", g.path(*value)).into();
                (g.cursor, g.scope) = (Origin { name, ..origin }, scope);
                let value = g.cast(*value, stored);
                let made = make(g, value, along);
                self.known.insert(key, made);
                made
            }
        };
        for at in boundaries.into_iter().rev() {
            let Some(b) = g.boundary(at) else { continue };
            let Origin { name, .. } = g.node(numbers[0]).origin.clone();
            // Rules for parameters split these, not their numbers.
            g.cursor = Origin { name, class: Class::Value, layer: true, ..g.node(at).origin.clone() };
            numbers = numbers.map(|number| self.cross(g, b.of, b.how, number));
        }
        (g.cursor, g.scope) = around;
        numbers
    }

    fn cross(&mut self, g: &mut Graph, of: RepeatId, how: Crossing, x: Id) -> Id {
        *self.crossed.entry((of, how, x)).or_insert_with(|| g.cross(of, how, x))
    }
}

/// What a factor is a copy of, and the slices and stacks between, the factor's own first.
///
/// A cotangent is read under the name that its factor has: what it is a copy of may be a sum that is not finished.
pub(crate) fn source(g: &Graph, mut x: Id) -> (FactorSource, Vec<Id>) {
    let stored = g.ty(x).dtype;
    let (mut along, mut boundaries) = (Vec::new(), Vec::new());
    // Behind the last boundary.
    let mut first = x;
    loop {
        let node = g.node(x);
        let all_there = |along: &[Dim]| along.iter().all(|d| g.ty(node.inputs[0]).has(*d));
        let how = g.boundary(x).map(|b| (b.how, b.dim));
        match (node.op.kind(), how) {
            (_, Some((Crossing::Slice, dim))) => {
                along.push(dim);
                boundaries.push(x);
                first = node.inputs[0];
            }
            (_, Some((Crossing::Stack, dim))) if along.contains(&dim) => {
                along.retain(|d| *d != dim);
                boundaries.push(x);
                first = node.inputs[0];
            }
            (Kind::Rename { .. }, _) if all_there(&along) => {}
            _ if node.op.as_any().is::<Expand>() && all_there(&along) => {}
            // A rounding to the dtype in which the factor is stored.
            _ if node.op.as_any().is::<Cast>()
                && node.ty.dtype == stored
                && g.ty(node.inputs[0]).dtype == stored.wide() => {}
            _ => {
                let value = if node.origin.phase == Phase::Forward { x } else { first };
                return (FactorSource { value, along }, boundaries);
            }
        }
        x = node.inputs[0];
    }
}

/// Whether a value is a scale or its inverse. To compute it again would read the factor once more, for a number.
pub(crate) fn is_scale(node: &Node) -> bool {
    let of = |op: &Unary| [POWER_OF_TWO.name, RECIP.name].contains(&op.0.name);
    node.origin.layer && node.op.as_any().downcast_ref::<Unary>().is_some_and(of)
}
