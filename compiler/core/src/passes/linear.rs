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
    items_of(g, scope, &g.ids().collect::<Vec<_>>())
}

/// The same, of which `within` are all values in it.
pub(crate) fn items_of(g: &Graph, scope: Option<RepeatId>, within: &[Id]) -> Vec<ScopeItem> {
    // The item of this scope that a value belongs to; none for values around it.
    let item = |id: Id| {
        let mut inner = g.node(id).scope;
        if inner == scope {
            return Some(ScopeItem::Value(id));
        }
        while let Some(of) = inner {
            let parent = g.repeats[of].parent;
            if parent == scope {
                return Some(ScopeItem::Loop(of));
            }
            inner = parent;
        }
        None
    };
    let mut first: SortedMap<ScopeItem, Id> = SortedMap::new();
    // Items with those that read them.
    let mut edges: Vec<(ScopeItem, ScopeItem)> = Vec::new();
    for id in within.iter().copied() {
        let Some(mine) = item(id) else { continue };
        first.entry(mine).or_insert(id);
        // What a carry is next may stand around its loop, which then waits for it.
        let reads: Cow<'_, [Id]> = match mine {
            ScopeItem::Loop(_) => g.depends_on(id).into(),
            ScopeItem::Value(_) => (&g.node(id).inputs[..]).into(),
        };
        let theirs = reads.iter().filter_map(|x| item(*x).filter(|i| *i != mine));
        edges.extend(theirs.map(|theirs| (theirs, mine)));
    }
    edges.sort_unstable();
    edges.dedup();
    let mut waits: SortedMap<ScopeItem, usize> = SortedMap::new();
    for (_, reader) in &edges {
        *waits.entry(*reader).or_default() += 1;
    }
    let ready = first.iter().filter(|(i, _)| !waits.contains_key(i));
    let mut heap: BinaryHeap<Reverse<(Id, ScopeItem)>> = ready.map(|(i, id)| Reverse((*id, *i))).collect();
    let mut out = Vec::with_capacity(first.len());
    while let Some(Reverse((_, done))) = heap.pop() {
        out.push(done);
        let from = edges.partition_point(|e| e.0 < done);
        for (_, user) in edges[from..].iter().take_while(|e| e.0 == done) {
            let Some(left) = waits.get_mut(user) else { continue };
            *left -= 1;
            if *left == 0 {
                heap.push(Reverse((first[user], *user)));
            }
        }
    }
    assert_eq!(out.len(), first.len(), "internal error: values of a loop depend on what follows it");
    out.reverse();
    out
}
