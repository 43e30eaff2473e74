//! Norms over what stages of a pipeline hold: squares are added layer after layer, whatever stage has a layer.

use crate::passes::normalize::rebuild_in;
use crate::passes::stages::Stages;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Computes, Crossing, Graph, Id, Kind, ScaledSquares};
use meshwright_plan::{Dim, Phase};
use std::collections::{BTreeMap, BTreeSet};

/// Sums of squares that are added together, with the sum of all and the rest of its operands.
struct Norm {
    sum: Id,
    squares: Vec<Id>,
    others: Vec<Id>,
}

/// Adds sums of squares of stacks, as those of gradients for clipping, in the order of the layers. Summed over all layers of a device at once, and then
/// over devices, they would be rounded otherwise where a device has other layers. So each layer has its own sum, of one stage alone, and
/// a number goes from stage to stage, to which each layer adds its own.
pub(crate) fn squares_in_order(step: &StepGraph, stages: &Stages) -> StepGraph {
    let mut step = step.clone();
    let g = &mut step.graph;
    let mut norms = norms(g, stages.dim);
    if norms.is_empty() {
        return step;
    }
    let (mut whole, mut order): (BTreeMap<Id, Id>, Vec<Id>) = Default::default();
    for id in g.ids().collect::<Vec<_>>() {
        if norms.iter().any(|n| n.sum == id) {
            // Norms of the same values are in one loop.
            let known = |n: &Norm| n.squares.iter().all(|s| *s <= id);
            let (now, later) = norms.into_iter().partition(known);
            norms = later;
            let made = g.nodes.len();
            added(g, stages.dim, &now, &mut whole);
            order.extend(g.ids().skip(made));
        }
        order.push(id);
    }
    for id in g.ids().collect::<Vec<_>>() {
        for x in &mut g.nodes[id].inputs {
            *x = whole.get(x).copied().unwrap_or(*x);
        }
    }
    for goal in &mut step.outputs {
        goal.id = whole.get(&goal.id).copied().unwrap_or(goal.id);
    }
    rebuild_in(&step, order.into_iter(), |g, node, _| g.push(node))
}

/// Whether a value is the sum of all squares of a stack.
fn is_square(g: &Graph, id: Id, dim: Dim) -> bool {
    let (node, ty) = (g.node(id), g.ty(id));
    let squares = match &node.inputs[..] {
        [a, b] => a == b && node.op.kind() == Kind::Compute(Computes::Contraction),
        [_] => node.op.name() == "scaled_squares",
        _ => false,
    };
    squares
        && node.scope.is_none()
        && node.origin.phase == Phase::Update
        && ty.dims.is_empty()
        && g.ty(node.inputs[0]).has(dim)
}

fn norms(g: &Graph, dim: Dim) -> Vec<Norm> {
    let squares: BTreeSet<Id> = g.ids().filter(|id| is_square(g, *id, dim)).collect();
    let adds = g.ids().filter(|id| g.node(*id).op.name() == "add" && g.node(*id).scope.is_none());
    let norm = |sum: Id| {
        let (squares, others) = g.node(sum).inputs.iter().partition(|x| squares.contains(x));
        Norm { sum, squares, others }
    };
    let mut all: Vec<Norm> = adds.map(norm).filter(|n| !n.squares.is_empty()).collect();
    let added: BTreeSet<Id> = all.iter().flat_map(|n| n.squares.iter().copied()).collect();
    // That of one stack alone.
    let alone = squares.iter().filter(|id| !added.contains(id));
    all.extend(alone.map(|id| Norm { sum: *id, squares: vec![*id], others: vec![] }));
    all
}

/// One loop over the layers that adds the squares of some norms.
fn added(g: &mut Graph, dim: Dim, norms: &[Norm], whole: &mut BTreeMap<Id, Id>) {
    let Some(first) = norms.first() else { return };
    (g.cursor, g.scope) = (g.node(first.sum).origin.clone(), None);
    let of_layers: Vec<Id> = norms.iter().map(|n| of_each_layer(g, dim, &n.squares)).collect();
    let of = g.repeat(dim, false);
    let mut nexts = vec![];
    for x in of_layers {
        let zero = g.constant(0.0, g.ty(x).dtype);
        let carry = g.carry(of, zero);
        let own = g.cross(of, Crossing::Slice, x);
        g.scope = Some(of);
        let next = g.sum_of(&[carry, own]);
        g.scope = None;
        g.carry_on(of, carry, next);
        nexts.push(next);
    }
    for (norm, next) in norms.iter().zip(nexts) {
        let sum = g.cross(of, Crossing::Final, next);
        let all: Vec<Id> = norm.others.iter().copied().chain([sum]).collect();
        let all = g.sum_of(&all);
        whole.insert(norm.sum, all);
    }
}

/// The sums of squares of each layer.
fn of_each_layer(g: &mut Graph, dim: Dim, squares: &[Id]) -> Id {
    let each: Vec<Id> = squares
        .iter()
        .map(|id| match g.node(*id).inputs[..] {
            [x] => g.op(ScaledSquares { out: vec![dim] }, &[x]),
            [x, ..] => g.contract_to(&[x, x], &[dim]),
            [] => *id,
        })
        .collect();
    g.sum_of(&each)
}
