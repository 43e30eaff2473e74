//! Copies of parameters that `keep` names are stored in the half type of the program.
//!
//! Before: in a program of `bf16` or `f16` the body of a loop takes its slice of a parameter, in full, and rounds it. After: the
//! whole parameter is rounded before the loop, and the body slices that. So each device rounds its shard once, and what is
//! gathered once a step and kept for all parts of a batch is the half type.

use super::linear::linearized;
use super::normalize::{dead_code, rebuild};
use crate::layout::Layout;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Cast, Crossing, Graph, Id, InputOpKind, Kind, Node, Origin};
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;

/// Rounds kept parameters before the loops that read them.
pub(crate) fn rounded_before_loops(step: StepGraph, layout: &Layout) -> StepGraph {
    if layout.keep.is_empty() || step.program != "train" || step.float.half().is_none() {
        return step;
    }
    let mut rounded: SortedMap<Id, Id> = SortedMap::new();
    let out = rebuild(&step, |g, node, _| {
        let to = node.op.as_any().downcast_ref::<Cast>().map(|c| c.to).filter(|to| to.is_half());
        let Some((to, x)) = to.zip(node.inputs.first().copied()) else { return g.push(node) };
        match kept(g, layout, x) {
            true if g.boundary(x).is_some() => round(g, &mut rounded, x, to),
            // What a loop slices is that which is there already.
            true => *rounded.entry(x).or_insert_with(|| g.push(node)),
            false => g.push(node),
        }
    });
    linearized(dead_code(&out))
}

/// Whether a value is a kept parameter, or an iteration's slice of one.
fn kept(g: &Graph, layout: &Layout, mut x: Id) -> bool {
    while g.boundary(x).is_some_and(|b| b.how == Crossing::Slice) {
        x = g.node(x).inputs[0];
    }
    let Kind::Input(InputOpKind::Param { path, .. }) = g.node(x).op.kind() else { return false };
    layout.keeps(&path).is_some()
}

/// A parameter in the half type, or the slice of that.
fn round(g: &mut Graph, rounded: &mut SortedMap<Id, Id>, x: Id, to: DType) -> Id {
    if let Some(known) = rounded.get(&x) {
        return *known;
    }
    let mut node: Node = g.node(x).clone();
    let id = if g.boundary(x).is_some() {
        node.inputs[0] = round(g, rounded, node.inputs[0], to);
        node.ty.dtype = to;
        g.push(node)
    } else {
        g.cursor = Origin { name: format!("{to}({})", g.path(x)).into(), ..node.origin };
        let around = std::mem::replace(&mut g.scope, node.scope);
        let cast = g.cast(x, to);
        g.scope = around;
        cast
    };
    rounded.insert(x, id);
    id
}
