//! Sums of values that lie one after the other along a dim, as one value: the gradient of slices that make up a dim, such as both
//! halves of what rotary positions turn.
//!
//! Each slice gives its gradient with zeros around it. Their sum is what they are one after the other, which is written once.

use super::normalize::{dead_code, rebuild};
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Add, Concat, Graph, Id, Kind, Node, Shift};
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// A term of a sum: the place among the terms, the dim of what is shifted, and its first position along the dim of the sum.
struct Piece {
    term: usize,
    from: Dim,
    at: usize,
}

/// Whether a step has such a sum.
pub(crate) fn has_any(step: &StepGraph) -> bool {
    step.graph.nodes.iter().any(|sum| pieces(&step.graph, sum).is_some())
}

/// Joins such terms of each sum.
pub(crate) fn joined(step: &StepGraph) -> StepGraph {
    dead_code(&rebuild(step, |g, node, _| {
        let Some((to, pieces)) = pieces(g, &node) else { return g.push(node) };
        let inputs = pieces.iter().map(|p| g.node(node.inputs[p.term]).inputs[0]).collect();
        let parts = pieces.iter().map(|p| p.from).collect();
        let whole = g.push(Node { op: Arc::new(Concat { parts, to }), inputs, ..node.clone() });
        let is_rest = |(term, _): &(usize, &Id)| pieces.iter().all(|p| p.term != *term);
        let rest = node.inputs.iter().enumerate().filter(is_rest).map(|(_, id)| *id);
        let terms: Vec<Id> = [whole].into_iter().chain(rest).collect();
        if terms.len() == 1 { whole } else { g.push(Node { op: Arc::new(Add), inputs: terms, ..node }) }
    }))
}

/// The terms of a sum that make up one of its dims, in order along it; none if no dim has such terms.
fn pieces(g: &Graph, sum: &Node) -> Option<(Dim, Vec<Piece>)> {
    if !matches!(sum.op.kind(), Kind::Add) {
        return None;
    }
    let mut along: SortedMap<Dim, Vec<Piece>> = SortedMap::new();
    for (term, id) in sum.inputs.iter().enumerate() {
        let node = g.node(*id);
        let Some(shift) = node.op.as_any().downcast_ref::<Shift>() else { continue };
        let alike = node.ty.dtype == sum.ty.dtype
            && node.ty.dims.len() == sum.ty.dims.len()
            && (node.scope, node.origin.class) == (sum.scope, sum.origin.class);
        if alike && shift.fill == 0.0 && shift.start <= 0 && shift.from != shift.to {
            let at = shift.start.unsigned_abs() as usize;
            along.entry(shift.to).or_default().push(Piece { term, from: shift.from, at });
        }
    }
    along.into_iter().find_map(|(to, mut pieces)| {
        pieces.sort_by_key(|p| p.at);
        let end = pieces.iter().try_fold(0, |end, p| (p.at == end).then(|| end + g.dims.size(p.from)));
        (pieces.len() > 1 && end == Some(g.dims.size(to))).then_some((to, pieces))
    })
}
