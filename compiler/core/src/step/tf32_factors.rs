//! Rounded values of a program of `tf32`.
//!
//! Before: a step in `f32`. After: the same step in which matmuls and convolutions read factors that are rounded to TF32. All
//! values stay `f32`, so a device that has no such matmuls computes what one that has them does.
//!
//! A value that all its consumers would round is stored rounded: values that a loop stacks as factors of its backward pass are
//! rounded in front of the stack. A sum of the backward pass, such as the gradient of a bias, reads the copy that the matmul
//! beside it reads. So nobody needs the value in full, and the step that computes it rounds it as it is stored.

use super::rounding::{beside, precision, readers};
use super::step_graph::{OutputKind, StepGraph};
use crate::passes::linear::linearized;
use crate::passes::normalize::rebuild;
use meshwright_ops::{Crossing, Graph, Id, Kind, Op, Precision, TF32, Unary};
use meshwright_plan::{DType, IdVec, Phase};
use std::sync::Arc;

/// The step with rounded factors.
pub(super) fn rounded(step: &StepGraph) -> StepGraph {
    let reads = Reads::of(step);
    linearized(rebuild(step, |g, mut node, id| {
        let (factors, op) = factors(&step.graph, id);
        node.op = op.unwrap_or(node.op);
        for (i, x) in node.inputs.iter_mut().enumerate() {
            let before = step.graph.node(id).inputs[i];
            let rounds = factors.contains(&i) || reads.copies[id] && reads.digits[before] == Digits::Rounded;
            if rounds && may_round(g, *x) && !reads.arrives_rounded(&step.graph, before) {
                *x = beside(g, *x, Unary(&TF32));
            }
        }
        g.push(node)
    }))
}

/// The operands of a node that are factors, and the same op that rounds factors which it computes itself.
fn factors(g: &Graph, id: Id) -> (Vec<usize>, Option<Arc<dyn Op>>) {
    let node = g.node(id);
    match (precision(g, id), node.op.rounding()) {
        (Precision::Products, _) => ((0..node.inputs.len()).collect(), None),
        (Precision::Full, _) | (_, None) => (vec![], None),
        (_, Some((factors, op))) => (factors, Some(op)),
    }
}

/// A number that scales a matmul is no factor of it that hardware would round.
fn may_round(g: &Graph, x: Id) -> bool {
    g.ty(x).dtype == DType::F32 && !g.ty(x).dims.is_empty()
}

/// Digits of a value that its consumers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Digits {
    /// None asks for more or for fewer: sums of the backward pass.
    Any,
    /// One rounds it, and none needs more.
    Rounded,
    /// One needs all.
    All,
}

/// The consumers of values.
struct Reads {
    /// Digits of each value that its consumers need.
    digits: IdVec<Id, Digits>,
    /// Nodes that multiply nothing, and yet read the rounded copies of operands.
    copies: IdVec<Id, bool>,
}

impl Reads {
    fn of(step: &StepGraph) -> Reads {
        let g = &step.graph;
        let all = readers(g);
        let mut reads = Reads { digits: g.nodes.table(Digits::Any), copies: g.nodes.table(false) };
        for goal in &step.outputs {
            reads.digits[goal.id] = Digits::All;
            if let OutputKind::Next(leaf) = goal.kind {
                reads.digits[leaf] = Digits::All;
            }
        }
        // Consumers before what they consume.
        for x in g.ids().rev().filter(|x| may_round(g, *x)) {
            let needs = all[x].iter().map(|r| reads.needs(g, *r, x)).max();
            reads.digits[x] = reads.digits[x].max(needs.unwrap_or(Digits::Any));
            if reads.digits[x] == Digits::Rounded {
                let multiplies = |r: &Id| !factors(g, *r).0.is_empty();
                all[x].iter().filter(|r| !multiplies(r)).for_each(|r| reads.copies[*r] = true);
            }
        }
        reads
    }

    /// Digits of an operand that one consumer needs.
    fn needs(&self, g: &Graph, reader: Id, x: Id) -> Digits {
        let node = g.node(reader);
        let (factors, _) = factors(g, reader);
        let is_factor = |(i, y): (usize, &Id)| *y != x || factors.contains(&i);
        match () {
            () if node.inputs.iter().enumerate().all(is_factor) => Digits::Rounded,
            () if passes_on(g, reader) => self.digits[reader],
            () if node.origin.phase == Phase::Backward && precision(g, reader) == Precision::Sums => {
                Digits::Any
            }
            () => Digits::All,
        }
    }

    /// True if a value has rounded numbers without a rounding of its own: an iteration's slice of a stack of such.
    fn arrives_rounded(&self, g: &Graph, x: Id) -> bool {
        passes_on(g, x) && (self.copies[x] || self.arrives_rounded(g, g.node(x).inputs[0]))
    }
}

/// True if a node gives the numbers that it reads. A slice of a parameter does not count: rounded in front of the loop, those of
/// all iterations would take memory at once.
fn passes_on(g: &Graph, id: Id) -> bool {
    let crossing = |id| g.boundary(id).map(|b| b.how);
    match crossing(id) {
        Some(Crossing::Stack) => true,
        Some(Crossing::Slice) => {
            let from = g.node(id).inputs[0];
            g.boundary(from).is_some() && passes_on(g, from)
        }
        Some(_) => false,
        None => matches!(g.node(id).op.kind(), Kind::Rename { .. }),
    }
}
