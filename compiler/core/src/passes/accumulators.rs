//! Sums that a loop carries on become sums over its iterations: of `total = total + x`, where nothing else reads `total` in the
//! loop, only `x` is of an iteration.
//!
//! Before: a carry that starts with 0, which its next value alone reads, as one of the summands. After: what leaves the loop is
//! the sum of the other summands over all iterations. A carry is whole in every iteration, where a sum over devices or over
//! microbatches may stay open until the loop has ended.

use meshwright_ops::{Boundary, Crossing, Expand, Graph, Id, Kind, RepeatId, union};
use meshwright_plan::IdVec;
use std::sync::Arc;

/// Rewrites the sums that loops carry on. Values keep their ids.
pub(crate) fn accumulators(g: &mut Graph) {
    if g.repeats.is_empty() {
        return;
    }
    let mut users: IdVec<Id, Vec<Id>> = g.nodes.table(Vec::new());
    for id in g.ids() {
        for x in &g.node(id).inputs {
            users[*x].push(id);
        }
    }
    for of in g.repeats.ids() {
        let carries = std::mem::take(&mut g.repeats[of].carries);
        let nexts: Vec<Id> = carries.iter().map(|c| c.1).collect();
        let mut left = Vec::new();
        for (carry, next) in carries {
            let alone = nexts.iter().filter(|n| **n == next).count() == 1;
            if alone && is_sum(g, &users, of, (carry, next)) {
                accumulate(g, &users[next], of, (carry, next));
            } else {
                left.push((carry, next));
            }
        }
        let dim = g.repeats[of].dim;
        for (k, (carry, _)) in left.iter().enumerate() {
            g.nodes[*carry].op = Arc::new(Boundary { of, dim, how: Crossing::Carry(k as u32) });
        }
        g.repeats[of].carries = left;
    }
}

/// Whether a carry is nothing but a sum over the iterations.
fn is_sum(g: &Graph, users: &IdVec<Id, Vec<Id>>, of: RepeatId, (carry, next): (Id, Id)) -> bool {
    let node = g.node(next);
    let others: Vec<Id> = node.inputs.iter().copied().filter(|x| *x != carry).collect();
    let dims = union(others.iter().map(|x| g.ty(*x)));
    let last = |u: &Id| g.boundary(*u).is_some_and(|b| b.of == of && b.how == Crossing::Final);
    node.op.kind() == Kind::Add
        && node.scope == Some(of)
        && others.len() + 1 == node.inputs.len()
        && !others.is_empty()
        && node.ty.dims.iter().all(|d| dims.contains(d))
        && users[carry] == [next]
        && users[next].iter().all(last)
        && starts_with_zero(g, g.node(carry).inputs[0])
}

fn starts_with_zero(g: &Graph, mut x: Id) -> bool {
    while g.node(x).op.as_any().is::<Expand>() {
        x = g.node(x).inputs[0];
    }
    g.constant_value(x) == Some(0.0)
}

fn accumulate(g: &mut Graph, lasts: &[Id], of: RepeatId, (carry, next): (Id, Id)) {
    g.nodes[next].inputs.retain(|x| *x != carry);
    let dims = g.ty(carry).dims.clone();
    // Nothing reads it any more.
    g.nodes[carry].op = Arc::new(Expand { dims });
    let dim = g.repeats[of].dim;
    for last in lasts {
        g.nodes[*last].op = Arc::new(Boundary { of, dim, how: Crossing::Accumulate });
    }
}
