//! Products with one-hots, which [`IndexedProduct`] computes by indexing.

use meshwright_ops::{Binary, Cast, Contract, EQ, Graph, Id, Index, IndexedProduct, Kind, Source, union};
use meshwright_plan::{DType, Dim};
use meshwright_sorted::SortedSet;
use std::sync::Arc;

/// Puts indexing in place of every product with one-hots that sums a dim of one: `sum[d](one_hot[d](i) * x)` is `x` at `i`, and
/// `sum[seq](one_hot[d](i) * x)` adds up `x` at the positions `i`. Ids stay what they are.
pub(super) fn index(g: &mut Graph) {
    let mut holding = SortedSet::new();
    for id in g.ids() {
        let Some(sums) = sums(g, id) else { continue };
        if !sums {
            let mut inputs = g.node(id).inputs.iter();
            if inputs.any(|x| one_hot(g, *x).is_some() || holding.contains(x)) {
                holding.insert(id);
            }
        } else if let Some((op, inputs)) = indexed(g, id, &holding) {
            let node = &mut g.nodes[id];
            (node.op, node.inputs) = (Arc::new(op), inputs);
        }
    }
}

/// Whether a product sums; `None` if it is none.
fn sums(g: &Graph, id: Id) -> Option<bool> {
    let out = &(*g.node(id).op).as_any().downcast_ref::<Contract>()?.out;
    Some(g.node(id).inputs.iter().any(|x| g.ty(*x).dims.iter().any(|d| !out.contains(d))))
}

/// A one-hot: the dim, and the position along it.
#[derive(Clone, Copy)]
struct OneHot {
    dim: Dim,
    position: Id,
}

/// What a product becomes; `None` where indexing is not the same, or gains nothing. Those that sum nothing and have one-hots
/// among their factors are in `holding`.
fn indexed(g: &Graph, id: Id, holding: &SortedSet<Id>) -> Option<(IndexedProduct, Vec<Id>)> {
    let out = (*g.node(id).op).as_any().downcast_ref::<Contract>()?.out.clone();
    let (mut factors, mut hots) = (Vec::new(), Vec::new());
    for x in &g.node(id).inputs {
        gather(g, *x, holding, &mut factors, &mut hots);
    }
    let one_each = hots.iter().enumerate().all(|(k, h)| hots[..k].iter().all(|other| other.dim != h.dim));
    let apart = hots.iter().all(|h| !hots.iter().any(|other| g.ty(h.position).has(other.dim)));
    // The sum of a one-hot alone is 1 only where its position is within its dim.
    let seen = |d: Dim| out.contains(&d) || factors.iter().any(|f| g.ty(*f).has(d));
    let floats = factors.iter().all(|f| g.ty(*f).dtype == g.ty(id).dtype) && g.ty(id).dtype.is_float();
    if hots.is_empty()
        || factors.is_empty()
        || !one_each
        || !apart
        || !floats
        || !hots.iter().all(|h| seen(h.dim))
    {
        return None;
    }
    let stays = |h: &&OneHot| out.contains(&h.dim);
    let at = union(hots.iter().filter(stays).map(|h| g.ty(h.position)));
    let sums = hots.iter().any(|h| !out.contains(&h.dim)) || at.iter().any(|d| !out.contains(d));
    let inputs = factors.into_iter().chain(hots.iter().map(|h| h.position)).collect();
    sums.then(|| (IndexedProduct { hots: hots.iter().map(|h| h.dim).collect(), out }, inputs))
}

/// The one-hots among the factors of a product, and the others; of products that sum nothing and have a one-hot, their factors.
fn gather(g: &Graph, x: Id, holding: &SortedSet<Id>, factors: &mut Vec<Id>, hots: &mut Vec<OneHot>) {
    let mut waiting = vec![x];
    while let Some(x) = waiting.pop() {
        if let Some(hot) = one_hot(g, x) {
            hots.push(hot);
        } else if holding.contains(&x) {
            waiting.extend(g.node(x).inputs.iter().rev());
        } else {
            factors.push(x);
        }
    }
}

/// `cast(i == index(d), float)`, where `i` lacks `d`.
fn one_hot(g: &Graph, x: Id) -> Option<OneHot> {
    let cast = g.node(x);
    (*cast.op).as_any().downcast_ref::<Cast>().filter(|c| c.to.is_float())?;
    let equal = g.node(cast.inputs[0]);
    (*equal.op).as_any().downcast_ref::<Binary>().filter(|b| b.0.name == EQ.name)?;
    let [a, b] = equal.inputs[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(position, here)| {
        let node = g.node(here);
        let Index { dim } = (*node.op).as_any().downcast_ref()?;
        let fits = g.ty(position).dtype == DType::I32
            && !g.ty(position).has(*dim)
            && g.node(position).op.kind() != Kind::Rematerializable(Source::Position);
        fits.then_some(OneHot { dim: *dim, position })
    })
}
