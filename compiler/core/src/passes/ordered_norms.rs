//! Norms over what stages of a pipeline hold: squares of layers are added in the order of the layers, whatever stage has a layer.
//!
//! Before: a sum of squares of all layers, such as that of the gradients by which these are clipped. Summed over the layers of a
//! device and then over devices it would be rounded otherwise where a device has other layers. After: each layer has its own sum,
//! at its position among those of all layers, where other stages have zero. These few numbers meet on all stages, and are added
//! there.

use crate::passes::normalize::rebuild;
use crate::passes::stages::Stages;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{ABS, Class, Computes, Graph, Id, Kind, Origin, ScaledSquares};
use meshwright_plan::{Cuts, DType, Dim, Monoid, Phase};
use meshwright_sorted::SortedSet;

/// Adds sums of squares of stacks in the order of their layers.
pub(crate) fn squares_in_order(step: &StepGraph, stages: &Stages) -> StepGraph {
    let (old, dim) = (&step.graph, stages.dim);
    let squares: SortedSet<Id> = old.ids().filter(|id| is_square(old, *id, dim)).collect();
    if squares.is_empty() {
        return step.clone();
    }
    let is_sum = |id: Id| old.node(id).op.name() == "add" && old.node(id).scope.is_none();
    let reads = |id: Id| old.node(id).inputs.iter().any(|x| squares.contains(x));
    let sums: SortedSet<Id> = old.ids().filter(|id| is_sum(*id) && reads(*id)).collect();
    let added: SortedSet<Id> = sums.iter().flat_map(|id| old.node(*id).inputs.iter().copied()).collect();
    let mut step = step.clone();
    let (name, size) = (format!("{}*order", step.graph.dims.name(dim)), step.graph.dims.size(dim));
    let order = step.graph.dims.make(&name, size, Some(dim));
    rebuild(&step, |g, node, id| {
        let (origin, inputs) = (node.origin.clone(), node.inputs.clone());
        if sums.contains(&id) {
            let of_layers = |(_, old): &(&Id, &Id)| squares.contains(old);
            let (mine, others): (Vec<_>, Vec<_>) =
                inputs.iter().zip(&step.graph.node(id).inputs).partition(of_layers);
            let mine: Vec<Id> = mine.into_iter().map(|(new, _)| *new).collect();
            let all = in_order(g, (dim, order), &mine, &origin);
            let all: Vec<Id> = others.into_iter().map(|(new, _)| *new).chain([all]).collect();
            return g.sum_of(&all);
        }
        let made = g.push(node);
        match squares.contains(&id) && !added.contains(&id) {
            true => in_order(g, (dim, order), &[made], &origin),
            false => made,
        }
    })
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

/// The sum of some sums of squares, in the order of the layers.
fn in_order(g: &mut Graph, (dim, order): (Dim, Dim), squares: &[Id], origin: &Origin) -> Id {
    // No rule speaks of these numbers: all stages have them whole.
    g.cursor = Origin { class: Class::Value, ..origin.clone() };
    let dtype = g.ty(squares[0]).dtype;
    let each = |id: &Id| match g.node(*id).inputs[..] {
        [x] => g.op(ScaledSquares { out: vec![dim] }, &[x]),
        [x, ..] => g.contract_to(&[x, x], &[dim]),
        [] => *id,
    };
    let each: Vec<Id> = squares.iter().map(each).collect();
    let of_layers = g.sum_of(&each);
    let of_layers = g.cast(of_layers, dtype);
    let (at, position) = (position(g, dim), g.index(order));
    let here = g.binary("==", at, position);
    let placed = g.masked(here, of_layers);
    let own = g.reduce(Monoid::Sum, placed, &[dim]);
    // It changes none of them, and is not linear: each stage has all numbers before it adds them.
    let all = g.unary(&ABS, own);
    let sum = g.reduce(Monoid::Sum, all, &[order]);
    g.cursor = origin.clone();
    sum
}

/// The position of what is stored at each place: places are in runs of consecutive positions.
fn position(g: &mut Graph, dim: Dim) -> Id {
    let place = g.index(dim);
    let positions = g.dims.cuts(dim).filter(|cuts| cuts.reorders()).map(Cuts::positions).unwrap_or_default();
    let mut terms = vec![place];
    let mut expected = 0;
    for (at, position) in positions.iter().enumerate() {
        let further = *position as f64 - expected as f64;
        if further != 0.0 {
            let [begin, further] = [at as f64, further].map(|n| g.constant(n, DType::I32));
            let behind = g.binary(">=", place, begin);
            terms.push(g.masked(behind, further));
        }
        expected = position + 1;
    }
    g.sum_of(&terms)
}
