//! A program with `training` decided: what one model says of training steps, and of evaluation and prediction.
//!
//! Before: a graph in which the value `training` may occur. After: one without. A choice that it decides is its branch, so
//! that the other branch is dead code. Values keep their ids; those that are nothing but another value are left unused.

use crate::program::Program;
use meshwright_ops::{Const, Expand, F64Tensor, Graph, Id, Kind};
use std::sync::Arc;

/// The program as it is in training steps, or in evaluation and prediction.
pub fn specialized(program: &Program, training: bool) -> Program {
    let mut out = program.clone();
    let Some(same) = decide(&mut out.graph, training) else { return out };
    let now = |id: &mut Id| *id = same[id.0 as usize];
    out.losses.iter_mut().chain(&mut out.metrics).chain(&mut out.outputs).for_each(|d| now(&mut d.id));
    out.states.iter_mut().filter_map(|s| s.next.as_mut()).for_each(now);
    if let Some(t) = &mut out.train {
        now(&mut t.minimize.id);
    }
    out
}

/// Decides every choice; gives for each value the one that it is now. `None` where nothing speaks of `training`.
fn decide(g: &mut Graph, training: bool) -> Option<Vec<Id>> {
    let ids: Vec<Id> = g.ids().collect();
    ids.iter().find(|i| g.node(**i).op.name() == "training")?;
    let mut same = ids.clone();
    // What is known only because `training` is, and its number.
    let mut known: Vec<Option<f64>> = vec![None; ids.len()];
    for id in ids {
        let i = id.0 as usize;
        for x in &mut g.nodes[i].inputs {
            *x = same[x.0 as usize];
        }
        let node = g.node(id).clone();
        let decided = |x: &Id| known[x.0 as usize];
        if node.op.name() == "training" {
            known[i] = Some(f64::from(u8::from(training)));
        } else if node.op.name() == "where"
            && let Some(c) = decided(&node.inputs[0])
        {
            let branch = node.inputs[if c != 0.0 { 1 } else { 2 }];
            known[i] = known[branch.0 as usize];
            if node.ty.dims.iter().all(|d| g.ty(branch).has(*d)) {
                same[i] = branch;
            } else {
                g.nodes[i].op = Arc::new(Expand { dims: node.ty.dims.clone() });
                g.nodes[i].inputs = vec![branch];
            }
            continue;
        } else if node.inputs.iter().any(|x| decided(x).is_some()) && node.ty.dims.is_empty() {
            known[i] = folded(g, id, &known);
        }
        if let Some(value) = known[i] {
            g.nodes[i].op = Arc::new(Const::new(value, node.ty.dtype));
            g.nodes[i].inputs.clear();
        }
    }
    Some(same)
}

/// The number of a scalar whose operands are all numbers.
fn folded(g: &Graph, id: Id, known: &[Option<f64>]) -> Option<f64> {
    let node = g.node(id);
    let number = |x: &Id| {
        let n = g.node(*x);
        let constant = n.op.name() == "const" && n.ty.dims.is_empty();
        known[x.0 as usize].or_else(|| constant.then(|| n.op.oracle(&[], &n.ty, &g.dims).data[0]))
    };
    if matches!(node.op.kind(), Kind::Input(_) | Kind::Gradient) || node.ty.dtype.is_pair() {
        return None;
    }
    let x: Vec<f64> = node.inputs.iter().map(number).collect::<Option<_>>()?;
    let x: Vec<F64Tensor> = x.into_iter().map(F64Tensor::scalar).collect();
    node.op.oracle(&x.iter().collect::<Vec<_>>(), &node.ty, &g.dims).data.first().copied()
}
