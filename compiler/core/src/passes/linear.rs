//! The order of values in which the body of a loop stands in one piece.
//!
//! Before: operands come before their users, but values of a body and of what is around it may alternate, as a backward pass
//! leaves them. After: the values of a body are consecutive, behind all that they read and before all that reads them.

use crate::passes::normalize::rebuild_in;
use crate::step::step_graph::StepGraph;
use meshwright_ops::{Graph, Id, RepeatId};
use meshwright_sorted::SortedMap;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Puts the body of each loop in one piece. A graph without loops stays as it is.
pub(crate) fn linearized(step: StepGraph) -> StepGraph {
    if step.graph.repeats.is_empty() {
        return step;
    }
    let mut order = Vec::with_capacity(step.graph.nodes.len());
    let bodies = bodies(&step.graph);
    // Scopes whose items are still to be put in order, innermost last.
    let mut todo: Vec<Vec<ScopeItem>> = vec![items(&step.graph, None)];
    while let Some(list) = todo.last_mut() {
        match list.pop() {
            Some(ScopeItem::Value(id)) => order.push(id),
            Some(ScopeItem::Loop(of)) => todo.push(items_of(&step.graph, Some(of), &bodies[&of])),
            None => {
                todo.pop();
            }
        }
    }
    rebuild_in(&step, order.into_iter(), |g, node, _| g.push(node))
}

/// What stands in a scope.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScopeItem {
    Value(Id),
    Loop(RepeatId),
}

/// The values of the body of each loop, with those of the loops in it.
pub(crate) fn bodies(g: &Graph) -> SortedMap<RepeatId, Vec<Id>> {
    let mut out: SortedMap<RepeatId, Vec<Id>> = SortedMap::new();
    for id in g.ids() {
        let mut inner = g.node(id).scope;
        while let Some(of) = inner {
            out.entry(of).or_default().push(id);
            inner = g.repeats[of].parent;
        }
    }
    out
}

/// The items of a scope, last first: operands before users, otherwise by their first values.
pub(crate) fn items(g: &Graph, scope: Option<RepeatId>) -> Vec<ScopeItem> {
    if g.repeats.is_empty() {
        return g.ids().rev().map(ScopeItem::Value).collect();
    }
    let within = g.ids().filter(|id| g.within(g.node(*id).scope, scope));
    items_of(g, scope, &within.collect::<Vec<_>>())
}

/// The same, of which `within` are all values in it and in its loops, in their order.
pub(crate) fn items_of(g: &Graph, scope: Option<RepeatId>, within: &[Id]) -> Vec<ScopeItem> {
    // The item of this scope that a value in it belongs to.
    let item = |id: Id| {
        let (mut item, mut inner) = (ScopeItem::Value(id), g.node(id).scope);
        while let Some(of) = inner.filter(|of| Some(*of) != scope) {
            (item, inner) = (ScopeItem::Loop(of), g.repeats[of].parent);
        }
        item
    };
    // Items are known by the positions of their first values.
    let mut loops: SortedMap<RepeatId, usize> = SortedMap::new();
    let all = within.iter().enumerate().map(|(at, id)| match item(*id) {
        ScopeItem::Value(_) => at,
        ScopeItem::Loop(of) => *loops.entry(of).or_insert(at),
    });
    let first: Vec<usize> = all.collect();
    let mut readers: Vec<(usize, usize)> = Vec::new();
    for (at, id) in within.iter().copied().enumerate() {
        let mine = first[at];
        // What a carry is next may stand around its loop, which then waits for it.
        let reads: Cow<'_, [Id]> = match g.node(id).scope == scope {
            false => g.depends_on(id).into(),
            true => (&g.node(id).inputs[..]).into(),
        };
        // What is not in the scope comes before it.
        let theirs = reads.iter().filter_map(|x| Some(first[within.binary_search(x).ok()?]));
        readers.extend(theirs.filter(|theirs| *theirs != mine).map(|theirs| (theirs, mine)));
    }
    readers.sort_unstable();
    readers.dedup();
    let mut waits = vec![0_usize; within.len()];
    readers.iter().for_each(|(_, reader)| waits[*reader] += 1);
    let is_ready = |at: &usize| first[*at] == *at && waits[*at] == 0;
    let mut ready: BinaryHeap<Reverse<usize>> = (0..within.len()).filter(is_ready).map(Reverse).collect();
    let mut out = Vec::with_capacity(within.len());
    while let Some(Reverse(done)) = ready.pop() {
        out.push(item(within[done]));
        let from = readers.partition_point(|e| e.0 < done);
        for (_, reader) in readers[from..].iter().take_while(|e| e.0 == done) {
            waits[*reader] -= 1;
            if waits[*reader] == 0 {
                ready.push(Reverse(*reader));
            }
        }
    }
    let items = first.iter().enumerate().filter(|(at, first)| at == *first).count();
    assert_eq!(out.len(), items, "internal error: values of a loop depend on what follows it");
    out.reverse();
    out
}
