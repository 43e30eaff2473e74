//! Sums over all parts that meet in an addition are added in each part, and summed as one.
//!
//! Before: an addition of several sums that leave the same loop over the parts and that nothing else reads, such as those of the
//! two uses of tied embeddings. After: the loop adds them, and gives one sum. So one is kept over the parts, and of a gradient
//! that is split each part scatters what it adds to it.

use crate::passes::normalize::rebuild;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Add, Boundary, Crossing, Id, Kind, Node, RepeatId};
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// Joins the sums that leave loops over the parts, counted by `over`.
pub(super) fn joined(step: &StepGraph, over: Dim) -> StepGraph {
    let g = &step.graph;
    let mut reads = g.nodes.table(0usize);
    for id in g.ids() {
        g.node(id).inputs.iter().for_each(|x| reads[*x] += 1);
    }
    step.outputs.iter().for_each(|o| reads[o.id] += 1);
    let sum_of = |x: Id| match g.node(x).op.kind() {
        Kind::Boundary(Boundary { of, dim, how: Crossing::Accumulate }) if dim == over && reads[x] == 1 => {
            let mut dims = g.ty(x).dims.clone();
            dims.sort();
            Some((of, dims))
        }
        _ => None,
    };
    rebuild(step, |new, mut node, id| {
        if node.op.kind() != Kind::Add {
            return new.push(node);
        }
        let mut groups: SortedMap<(RepeatId, Vec<Dim>), Vec<usize>> = SortedMap::new();
        for (slot, x) in g.node(id).inputs.iter().enumerate() {
            if let Some(sum) = sum_of(*x) {
                groups.entry(sum).or_default().push(slot);
            }
        }
        groups.retain(|_, slots| slots.len() > 1);
        for ((of, _), slots) in &groups {
            let sums: Vec<Id> = slots.iter().map(|s| node.inputs[*s]).collect();
            let ty = new.ty(sums[0]).clone();
            let inputs = sums.iter().map(|x| new.node(*x).inputs[0]).collect();
            let origin = node.origin.clone();
            let part =
                Node { op: Arc::new(Add), inputs, ty: ty.clone(), origin: origin.clone(), scope: Some(*of) };
            let part = new.push(part);
            let op = Arc::new(Boundary { of: *of, dim: over, how: Crossing::Accumulate });
            node.inputs[slots[0]] = new.push(Node { op, inputs: vec![part], ty, origin, scope: node.scope });
        }
        let mut slot = 0..;
        node.inputs.retain(|_| {
            let slot = slot.next();
            !groups.values().any(|slots| slots[1..].iter().any(|s| Some(*s) == slot))
        });
        if node.inputs.len() == 1 { node.inputs[0] } else { new.push(node) }
    })
}
