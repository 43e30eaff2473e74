//! Gradients of weights apart from the rest of the backward pass, for schedules that fill the time in which a stage waits with
//! them (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2).
//!
//! Before: a loop over microbatches goes backward through the layers. After: products in the layers that lead to nothing but
//! gradients are in a further loop over microbatches, with all that is made of them. Their operands that the backward pass
//! computes are kept for it in stacks, those of the forward pass are read a second time. What is cheap stays: sums for biases and
//! for the scales of norms.

use super::linear::linearized;
use super::normalize::dead_code;
use super::stages::Stages;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{
    Boundary, Computes, Crossing, Expand, Graph, Id, Kind, Node, Origin, Repeat, RepeatId, Source,
};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Takes gradients of weights out of the backward pass of a pipeline, if it has any.
pub(crate) fn apart(mut step: StepGraph, stages: &Stages) -> StepGraph {
    let Some(back) = Backward::of(&step.graph, stages) else { return step };
    let moved = back.moved(&step.graph);
    if moved.is_empty() {
        return step;
    }
    let g = &mut step.graph;
    let Repeat { dim, reverse, from, .. } = g.repeats[back.layers];
    let over = g.repeat(g.repeats[back.over].dim, false);
    let layers = g.repeat(dim, reverse);
    (g.repeats[layers].parent, g.repeats[layers].from) = (Some(over), from);
    let mut weights = Weights { g, back, over, layers, made: SortedMap::new(), moved };
    weights.make();
    dead_code(&linearized(step))
}

/// The loops of the backward pass.
#[derive(Clone, Copy)]
struct Backward {
    /// That over microbatches.
    over: RepeatId,
    /// That over layers, in its body.
    layers: RepeatId,
}

impl Backward {
    fn of(g: &Graph, stages: &Stages) -> Option<Backward> {
        let parts = g.microbatches?;
        g.ids().find_map(|id| {
            let layers = g.node(id).scope?;
            let Repeat { dim, reverse, parent, .. } = g.repeats[layers];
            let over = parent.filter(|over| g.repeats[*over].dim == parts.over)?;
            (dim == stages.dim && reverse).then_some(Backward { over, layers })
        })
    }

    /// The values that leave the backward pass: products that lead to sums over the microbatches alone, and what is made of them.
    fn moved(self, g: &Graph) -> SortedSet<Id> {
        let mut users: SortedMap<Id, Vec<Id>> = SortedMap::new();
        for id in g.ids() {
            g.node(id).inputs.iter().for_each(|x| users.entry(*x).or_default().push(id));
        }
        let next: SortedSet<Id> = g.repeats.iter().flat_map(|r| r.carries.iter().map(|c| c.1)).collect();
        let sums =
            |id: &Id| g.boundary(*id).is_some_and(|b| b.of == self.over && b.how == Crossing::Accumulate);
        let within = |id: Id| [Some(self.over), Some(self.layers)].contains(&g.node(id).scope);
        let (mut free, mut moved) = (SortedSet::new(), SortedSet::new());
        for id in g.ids().rev().filter(|id| within(*id) && !next.contains(id)) {
            let leads = users.get(&id).is_some_and(|all| all.iter().all(|u| free.contains(u) || sums(u)));
            let enters = g.boundary(id).is_some_and(|b| !b.how.leaves());
            if leads && !enters {
                free.insert(id);
            }
        }
        for id in g.ids().filter(|id| free.contains(id)) {
            let product = g.node(id).scope == Some(self.layers) && is_product(g, id);
            if product || g.node(id).inputs.iter().any(|x| moved.contains(x)) {
                moved.insert(id);
            }
        }
        moved
    }
}

/// Whether a value is a product of matrices: of two operands each has a dim of the result that the other lacks.
fn is_product(g: &Graph, id: Id) -> bool {
    let node = g.node(id);
    let own = |of: usize| {
        let dims = g.ty(node.inputs[of]).dims.iter();
        dims.filter(|d| node.ty.has(**d))
            .any(|d| !(0..node.inputs.len()).any(|o| o != of && g.ty(node.inputs[o]).has(*d)))
    };
    matches!(node.op.kind(), Kind::Compute(Computes::Contraction))
        && (0..node.inputs.len()).filter(|of| own(*of)).count() > 1
}

/// The loop of gradients that is being made.
struct Weights<'g> {
    g: &'g mut Graph,
    back: Backward,
    /// The loop over microbatches.
    over: RepeatId,
    /// The loop over layers in it.
    layers: RepeatId,
    /// What the new loops have of values of the backward pass.
    made: SortedMap<Id, Id>,
    moved: SortedSet<Id>,
}

impl Weights<'_> {
    fn make(&mut self) {
        let all: Vec<Id> = self.g.ids().collect();
        for id in self.moved.clone() {
            self.bring(id);
        }
        // Sums over microbatches take their values from the new loop.
        for id in all {
            let x = self.g.node(id).inputs.first().copied().filter(|x| self.moved.contains(x));
            let sum = self.g.boundary(id).filter(|b| b.of == self.back.over);
            if let (Some(x), Some(b)) = (x.and_then(|x| self.made.get(&x)), sum) {
                let node = &mut self.g.nodes[id];
                node.inputs = vec![*x];
                node.op = Arc::new(Boundary { of: self.over, ..b });
            }
        }
    }

    /// The loop that takes the place of one of the backward pass.
    fn scope(&self, of: Option<RepeatId>) -> Option<RepeatId> {
        match of {
            Some(of) if of == self.back.over => Some(self.over),
            Some(of) if of == self.back.layers => Some(self.layers),
            other => other,
        }
    }

    /// A value, computed in the new loops.
    fn copy(&mut self, id: Id) -> Id {
        let mut node: Node = self.g.node(id).clone();
        node.inputs = node.inputs.iter().map(|x| self.bring(*x)).collect();
        node.scope = self.scope(node.scope);
        if let Some(b) = self.g.boundary(id) {
            node.op = Arc::new(Boundary { of: self.scope(Some(b.of)).unwrap_or(b.of), ..b });
        }
        let made = self.g.push(node);
        self.made.insert(id, made);
        made
    }

    /// A value of the backward pass in the new loops.
    fn bring(&mut self, x: Id) -> Id {
        if let Some(known) = self.made.get(&x) {
            return *known;
        }
        let node = self.g.node(x);
        let origin = node.origin.clone();
        let again = match node.op.kind() {
            Kind::Rematerializable(source) => source != Source::Random,
            Kind::Rename { .. } => true,
            _ => node.op.as_any().is::<Expand>() || self.moved.contains(&x),
        };
        let (scope, slice) = (node.scope, self.g.boundary(x).filter(|b| b.how == Crossing::Slice));
        let Some(of) = scope.filter(|of| [self.back.over, self.back.layers].contains(of)) else { return x };
        if again {
            return self.copy(x);
        }
        let into = if of == self.back.layers { self.layers } else { self.over };
        let made = match slice {
            Some(_) => {
                let all = self.g.node(x).inputs[0];
                let all = self.bring(all);
                self.cross(into, Crossing::Slice, all, origin)
            }
            None => {
                let mut all = self.cross(of, Crossing::Stack, x, origin.clone());
                if of == self.back.layers {
                    all = self.cross(self.back.over, Crossing::Stack, all, origin.clone());
                    all = self.cross(self.over, Crossing::Slice, all, origin.clone());
                }
                self.cross(into, Crossing::Slice, all, origin)
            }
        };
        self.made.insert(x, made);
        made
    }

    fn cross(&mut self, of: RepeatId, how: Crossing, x: Id, origin: Origin) -> Id {
        self.g.cursor = origin;
        self.g.cross(of, how, x)
    }
}
