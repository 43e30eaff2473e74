//! Loop-invariant code motion: a value of a body that depends on values around the loop alone is computed before it, once.
//!
//! It runs before gradients are taken, so that such a value is no residual of every iteration. What is made of constants and
//! positions alone stays: it is free to make again, and would only take memory for as long as the loop lasts.
//!
//! What leaves a loop is made by the loop. So where no iteration changes it, it becomes an ordinary value, which autodiff visits
//! in its turn: the stack of such a value is that value repeated, and the last one is the value itself. A sum over the
//! iterations stays one, of a value of the body.

use meshwright_ops::{Boundary, Crossing, Expand, Graph, Id, Kind, RepeatId, Source};
use meshwright_plan::IdVec;
use meshwright_sorted::SortedSet;
use std::sync::Arc;

/// Moves values out of the loops that they do not depend on. Values keep their ids.
pub(crate) fn hoist(g: &mut Graph) {
    if g.repeats.is_empty() {
        return;
    }
    // Made of constants and positions alone.
    let mut free: IdVec<Id, bool> = g.nodes.table(false);
    let summed: SortedSet<Id> = g.ids().filter_map(|id| summed(g, id)).collect();
    for id in g.ids() {
        leave_unchanged(g, id);
        let node = g.node(id);
        let computed = match node.op.kind() {
            Kind::Rematerializable(source) => {
                free[id] = source != Source::Random;
                false
            }
            Kind::Add | Kind::Rename { .. } | Kind::Compute(_) => {
                free[id] = node.inputs.iter().all(|x| free[*x]);
                !free[id]
            }
            _ => false,
        };
        if node.scope.is_none() || !computed || summed.contains(&id) {
            continue;
        }
        let scopes = node.inputs.iter().filter(|x| !free[**x]).map(|x| g.node(*x).scope);
        let innermost = scopes.max_by_key(|scope| depth(g, *scope)).unwrap_or_default();
        if innermost != node.scope {
            bring(g, id, innermost, &free);
        }
    }
}

/// What a value sums over the iterations of a loop, if it does.
fn summed(g: &Graph, id: Id) -> Option<Id> {
    let sum = g.boundary(id).is_some_and(|b| b.how == Crossing::Accumulate);
    sum.then(|| g.node(id).inputs[0])
}

/// Makes what leaves a loop of a value from around it an ordinary value.
fn leave_unchanged(g: &mut Graph, id: Id) {
    let Some(Boundary { of, how: Crossing::Stack | Crossing::Final, .. }) = g.boundary(id) else { return };
    let node = g.node(id);
    if g.repeats[of].from == 0 && !g.within(g.node(node.inputs[0]).scope, Some(of)) {
        let dims = node.ty.dims.clone();
        g.nodes[id].op = Arc::new(Expand { dims });
    }
}

/// How many loops a scope is in.
fn depth(g: &Graph, mut scope: Option<RepeatId>) -> usize {
    let mut loops = 0;
    while let Some(of) = scope {
        loops += 1;
        scope = g.repeats[of].parent;
    }
    loops
}

/// Moves a value, and what it reads of constants and positions, to a scope around its own.
fn bring(g: &mut Graph, id: Id, to: Option<RepeatId>, free: &IdVec<Id, bool>) {
    let mut todo = vec![id];
    while let Some(id) = todo.pop() {
        g.nodes[id].scope = to;
        let inputs = &g.node(id).inputs;
        todo.extend(inputs.iter().filter(|x| free[**x] && !g.within(to, g.node(**x).scope)));
    }
}
