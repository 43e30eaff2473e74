//! A program with `training` decided: what one model says of training steps, and of evaluation and prediction.
//!
//! Before: a graph in which the value `training` may occur. After: one without. A choice that it decides is its branch, so
//! that the other branch is dead code. Values keep their ids; those that are nothing but another value are left unused.

use crate::passes::accumulators::accumulators;
use crate::passes::hoist::hoist;
use crate::program::Program;
use crate::step::layers::mark;
use meshwright_ops::{Computes, Const, Expand, Graph, Id, Kind, Source};
use meshwright_plan::IdVec;
use std::sync::Arc;

/// The program as it is in training steps, or in evaluation and prediction, with what loops do not change moved out of
/// them, and sums that they carry on as sums over their iterations; in `fp8` with the products of layers marked.
pub fn specialized(program: &Program, training: bool) -> Program {
    let mut out = program.clone();
    let same = decide(&mut out.graph, training);
    hoist(&mut out.graph);
    accumulators(&mut out.graph);
    if let Some(same) = same {
        let now = |id: &mut Id| *id = same[*id];
        out.losses.iter_mut().chain(&mut out.metrics).chain(&mut out.outputs).for_each(|d| now(&mut d.id));
        out.states.iter_mut().filter_map(|s| s.next.as_mut()).for_each(now);
        if let Some(t) = &mut out.train {
            t.objectives.iter_mut().for_each(|o| now(&mut o.loss.id));
        }
    }
    mark(&mut out);
    out
}

/// Decides every choice; gives for each value the one that it is now. `None` where nothing speaks of `training`.
fn decide(g: &mut Graph, training: bool) -> Option<IdVec<Id, Id>> {
    let training_value = Kind::Rematerializable(Source::Training);
    g.ids().find(|i| g.node(*i).op.kind() == training_value)?;
    let mut same: IdVec<Id, Id> = g.ids().collect();
    // What is known only because `training` is, and its number.
    let mut known: IdVec<Id, Option<f64>> = g.nodes.table(None);
    for id in g.ids() {
        for x in &mut g.nodes[id].inputs {
            *x = same[*x];
        }
        let node = g.node(id).clone();
        let decided = |x: &Id| known[*x];
        if node.op.kind() == training_value {
            known[id] = Some(f64::from(u8::from(training)));
        } else if node.op.kind() == Kind::Compute(Computes::Select)
            && let Some(c) = decided(&node.inputs[0])
        {
            let branch = node.inputs[if c != 0.0 { 1 } else { 2 }];
            known[id] = known[branch];
            if node.ty.dims.iter().all(|d| g.ty(branch).has(*d)) {
                same[id] = branch;
            } else {
                g.nodes[id].op = Arc::new(Expand { dims: node.ty.dims.clone() });
                g.nodes[id].inputs = vec![branch];
            }
            continue;
        } else if node.inputs.iter().any(|x| decided(x).is_some()) && node.ty.dims.is_empty() {
            known[id] = folded(g, id, &known);
        }
        if let Some(value) = known[id] {
            g.nodes[id].op = Arc::new(Const::new(value, node.ty.dtype));
            g.nodes[id].inputs.clear();
        }
    }
    for of in g.repeats.ids() {
        for (_, next) in &mut g.repeats[of].carries {
            *next = same[*next];
        }
    }
    Some(same)
}

/// The number of a scalar whose operands are all numbers.
fn folded(g: &Graph, id: Id, known: &IdVec<Id, Option<f64>>) -> Option<f64> {
    let node = g.node(id);
    let number = |x: &Id| known[*x].or_else(|| g.constant_value(*x));
    if node.op.kind() == Kind::Gradient {
        return None;
    }
    let x: Vec<f64> = node.inputs.iter().map(number).collect::<Option<_>>()?;
    node.folded(&x)
}
