//! Sums over layers that each example has of its own go from stage to stage with what the layers carry.
//!
//! Before: a sum over the layers of a value of each example, as the gradient of what all layers read has it. Each stage would
//! have the part of its own layers, and stages do not meet within a microbatch. After: the loop carries the sum of the layers
//! before, and ends with that of all. A sum that becomes one over examples at once, by a product with what all stages know, stays
//! as it is: its parts are added behind all microbatches.

use super::levels::is_input;
use crate::passes::linear::linearized;
use crate::passes::normalize::rebuild_in;
use crate::passes::stages::Stages;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Boundary, Crossing, Graph, Id};
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;

/// Turns the sums of a step whose layers are stages, of examples along `example`, into carries.
pub(super) fn carried(step: &StepGraph, example: Dim, stages: &Stages) -> StepGraph {
    let found: SortedMap<Id, Boundary> = sums(step, example, stages);
    if found.is_empty() {
        return step.clone();
    }
    let mut step = step.clone();
    let g = &mut step.graph;
    let mut ends: SortedMap<Id, Id> = SortedMap::new();
    let mut order: Vec<Id> = Vec::new();
    for id in g.ids().collect::<Vec<_>>() {
        order.push(id);
        if let Some(b) = found.get(&id) {
            let made = g.nodes.len();
            ends.insert(id, carry(g, id, *b));
            order.extend(g.ids().skip(made));
        }
    }
    for id in g.ids() {
        for x in &mut g.nodes[id].inputs {
            *x = ends.get(x).copied().unwrap_or(*x);
        }
    }
    for goal in &mut step.outputs {
        goal.id = ends.get(&goal.id).copied().unwrap_or(goal.id);
    }
    linearized(rebuild_in(&step, order.into_iter(), |g, node, _| g.push(node)))
}

/// The sums over layers that stages would need of each other within a microbatch.
fn sums(step: &StepGraph, example: Dim, stages: &Stages) -> SortedMap<Id, Boundary> {
    let g = &step.graph;
    let mut users: SortedMap<Id, Vec<Id>> = SortedMap::new();
    for id in g.ids() {
        g.node(id).inputs.iter().for_each(|x| users.entry(*x).or_default().push(id));
    }
    let over_layers = |id: Id| {
        let of = |b: &Boundary| g.repeats[b.of].dim == stages.dim && g.repeats[b.of].parent.is_none();
        g.boundary(id).filter(|b| b.how == Crossing::Accumulate && of(b) && g.ty(id).has(example))
    };
    // A sum over examples, linear in what each stage has of it.
    let summed = |x: Id, user: Id| {
        let node = g.node(user);
        let slots = (0..node.inputs.len()).filter(|slot| node.inputs[*slot] == x).collect();
        let roles = node.op.roles(&g.input_types(user), &node.ty, &g.dims);
        let known = |other: &Id| *other == x || is_input(g, *other) || g.constant_value(*other).is_some();
        g.boundary(user).is_none()
            && !node.ty.has(example)
            && roles.linear_in(&slots, node.inputs.len())
            && node.inputs.iter().all(known)
    };
    let stays = |id: Id| users.get(&id).is_some_and(|all| all.iter().all(|user| summed(id, *user)));
    let is_goal = |id: Id| step.outputs.iter().any(|o| o.id == id);
    g.ids()
        .filter_map(|id| Some((id, over_layers(id)?)))
        .filter(|(id, _)| is_goal(*id) || !stays(*id))
        .collect()
}

/// Carries a sum on in its loop; the value that the loop ends with.
fn carry(g: &mut Graph, sum: Id, b: Boundary) -> Id {
    let (x, ty) = (g.node(sum).inputs[0], g.ty(sum).clone());
    (g.cursor, g.scope) = (g.node(sum).origin.clone(), None);
    let zero = g.constant(0.0, ty.dtype);
    let zero = g.expanded(zero, &ty.dims);
    let before = g.carry(b.of, zero);
    g.scope = Some(b.of);
    let own = g.cast(x, ty.dtype);
    let next = g.sum_of(&[before, own]);
    g.scope = None;
    g.carry_on(b.of, before, next);
    g.cross(b.of, Crossing::Final, next)
}
