//! Reverse-mode differentiation of the global named program, so that the backward pass is partitioned by the same rules
//! as the forward one.
//!
//! Before: a graph with a scalar loss. After: the same graph with, for each parameter, a value of class `Grad`. Cotangents
//! may lack dims along which they are constant, and several of one value meet in one n-ary add. The gradient of a loop is a loop
//! in the opposite direction, which reads what the first one has stacked: `loops`.

mod loops;
mod norms;
mod pass;

use crate::passes::linear::{ScopeItem, bodies, items, items_of};
use crate::program::ParamDecl;
use meshwright_ops::{Class, Crossing, Graph, Id, Kind, RepeatId};
use meshwright_plan::IdVec;
use meshwright_sorted::{SortedMap, SortedSet};
use pass::{BackwardPass, backward};

/// Appends the backward pass. Returns the gradient of `loss` for each of `params`, with the parameter's dims.
pub fn gradients(g: &mut Graph, loss: Id, params: &[&ParamDecl]) -> Vec<Id> {
    scaled_gradients(g, loss, params, None)
}

/// The same of the loss times `scale`, a value of its dtype.
pub(crate) fn scaled_gradients(g: &mut Graph, loss: Id, params: &[&ParamDecl], scale: Option<Id>) -> Vec<Id> {
    let wanted: SortedSet<Id> = params.iter().map(|p| p.id).collect();
    let needs = needs(g, &wanted);
    let only_renamed = only_renamed(g);
    g.cursor = backward(g, loss, Class::Value);
    let seed = scale.unwrap_or_else(|| g.constant(1.0, g.ty(loss).dtype));
    let (bodies, outs) = (bodies(g), outs(g));
    let frozen = params.iter().map(|p| (p.id, &p.frozen_at[..])).collect();
    let mut pass = BackwardPass {
        g,
        frozen,
        bodies,
        outs,
        wanted,
        needs,
        only_renamed,
        cotangents: SortedMap::from([(loss, vec![seed])]),
        found: SortedMap::new(),
        open: Vec::new(),
        brought: SortedMap::new(),
    };
    pass.walk(None);
    let BackwardPass { g, found, .. } = pass;
    params
        .iter()
        .map(|p| {
            g.cursor = backward(g, p.id, Class::Value);
            let dims = g.ty(p.id).dims.clone();
            let dtype = g.ty(p.id).dtype;
            let dy = match found.get(&p.id) {
                Some(dy) => *dy,
                None => g.constant(0.0, dtype),
            };
            let full = g.expanded(dy, &dims);
            g.cursor = backward(g, p.id, Class::Grad);
            g.op(meshwright_ops::Gradient, &[full])
        })
        .collect()
}

/// Values that a single rename reads and nothing else.
fn only_renamed(g: &Graph) -> SortedSet<Id> {
    let (mut once, mut more) = (SortedSet::new(), SortedSet::new());
    for id in g.ids() {
        let renames = matches!(g.node(id).op.kind(), Kind::Rename { .. });
        for x in g.depends_on(id) {
            if !renames || !once.insert(x) {
                more.insert(x);
            }
        }
    }
    once.difference(&more).copied().collect()
}

/// Which values depend on one of those wanted.
pub(crate) fn needs(g: &Graph, wanted: &SortedSet<Id>) -> IdVec<Id, bool> {
    let mut needs = g.nodes.table(false);
    loop {
        let mut changed = false;
        for id in g.ids() {
            let now = wanted.contains(&id) || g.depends_on(id).iter().any(|i| needs[*i]);
            changed |= now != std::mem::replace(&mut needs[id], now);
        }
        // A carry depends on what comes after it.
        if !changed || g.repeats.is_empty() {
            return needs;
        }
    }
}

/// What leaves each loop, in order.
fn outs(g: &Graph) -> SortedMap<RepeatId, Vec<(Id, Crossing)>> {
    let mut out: SortedMap<RepeatId, Vec<(Id, Crossing)>> = SortedMap::new();
    for id in g.ids() {
        if let Some(b) = g.boundary(id).filter(|b| b.how.leaves()) {
            out.entry(b.of).or_default().push((id, b.how));
        }
    }
    out
}

impl BackwardPass<'_> {
    /// Visits the values of a scope, users before operands.
    fn walk(&mut self, scope: Option<RepeatId>) {
        let found = match scope {
            None => items(self.g, None),
            Some(of) => items_of(self.g, scope, self.bodies.get(&of).map_or(&[], Vec::as_slice)),
        };
        for item in found {
            match item {
                ScopeItem::Loop(of) => self.differentiate_loop(of),
                ScopeItem::Value(id) => {
                    // What crosses the boundary of a loop belongs to it.
                    let crosses = self.g.boundary(id).is_some_and(|b| b.how != Crossing::Slice);
                    if !crosses && let Some(parts) = self.cotangents.remove(&id) {
                        self.visit(id, &parts);
                    }
                }
            }
        }
    }
}
