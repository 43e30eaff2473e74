//! Reverse-mode differentiation of the global named program, so that the backward pass is partitioned by the same rules
//! as the forward one.
//!
//! Before: a graph with a scalar loss. After: the same graph with, for each parameter, a value of class `Grad`. Cotangents
//! may lack dims along which they are constant, and several of one value meet in one n-ary add. The gradient of a loop is a loop
//! in the opposite direction, which reads what the first one has stacked: [`loops`].

#[path = "autodiff/loops.rs"]
mod loops;

use crate::linear::{Item, items};
use crate::program::ParamDecl;
use loops::BackwardLoop;
use meshwright_ops::{Class, Crossing, Graph, Id, Kind, Origin, Precision, RepeatId, Type};
use meshwright_plan::{IdVec, Phase};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Appends the backward pass. Returns the gradient of `loss` for each of `params`, with the parameter's dims.
pub fn gradients(g: &mut Graph, loss: Id, params: &[&ParamDecl]) -> Vec<Id> {
    let wanted: BTreeSet<Id> = params.iter().map(|p| p.id).collect();
    let needs = needs(g, &wanted);
    g.cursor = backward(g, loss, Class::Value);
    let one = g.constant(1.0, g.ty(loss).dtype);
    let mut pass = BackwardPass {
        g,
        wanted,
        needs,
        cotangents: BTreeMap::from([(loss, vec![one])]),
        found: BTreeMap::new(),
        open: Vec::new(),
        brought: BTreeMap::new(),
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

/// Which values depend on one of those wanted.
fn needs(g: &Graph, wanted: &BTreeSet<Id>) -> IdVec<Id, bool> {
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

/// One walk from a loss back to the parameters.
struct BackwardPass<'g> {
    g: &'g mut Graph,
    wanted: BTreeSet<Id>,
    needs: IdVec<Id, bool>,
    /// The parts of the cotangent of each value that has not been visited yet.
    cotangents: BTreeMap<Id, Vec<Id>>,
    found: BTreeMap<Id, Id>,
    /// The loops in whose bodies the walk is, outermost first.
    open: Vec<BackwardLoop>,
    /// Values of a body as the backward loop that is named reads them.
    brought: BTreeMap<(RepeatId, Id), Id>,
}

impl BackwardPass<'_> {
    /// Visits the values of a scope, users before operands.
    fn walk(&mut self, scope: Option<RepeatId>) {
        for item in items(self.g, scope) {
            match item {
                Item::Loop(of) => self.differentiate_loop(of),
                Item::Value(id) => {
                    // What crosses the boundary of a loop belongs to it.
                    let crosses = self.g.boundary(id).is_some_and(|b| b.how != Crossing::Slice);
                    if !crosses && let Some(parts) = self.cotangents.remove(&id) {
                        self.visit(id, &parts);
                    }
                }
            }
        }
    }

    fn visit(&mut self, id: Id, parts: &[Id]) {
        self.g.cursor = backward(self.g, id, Class::Value);
        let dy = self.g.sum_of(parts);
        if self.wanted.contains(&id) {
            self.found.insert(id, dy);
            return;
        }
        if !self.needs[id] {
            return;
        }
        let node = self.g.node(id).clone();
        let need: Vec<bool> =
            node.inputs.iter().map(|i| self.needs[*i] && self.g.ty(*i).dtype.is_float()).collect();
        if !need.contains(&true) || matches!(node.op.kind(), Kind::Input(_)) {
            return;
        }
        if self.g.boundary(id).is_some() {
            self.sliced(node.inputs[0], dy);
            return;
        }
        let types: Vec<&Type> = node.inputs.iter().map(|i| self.g.ty(*i)).collect();
        let full = node.origin.full || node.op.precision(&types, &node.ty) == Precision::Full;
        let operands: Vec<Id> = node.inputs.iter().map(|x| self.bring(*x)).collect();
        let result = self.bring(id);
        self.g.cursor = Origin { full, ..backward(self.g, id, Class::Value) };
        let made = self.g.nodes.len() as u32;
        let parts = node.op.vjp(self.g, &operands, result, dy, &need);
        for ((input, part), need) in node.inputs.iter().zip(parts).zip(need) {
            if let (Some(part), true) = (part, need) {
                // Placed as the op's own values are, it is a cotangent of the operand.
                if part.0 >= made {
                    self.g.nodes[part].origin.name = cotangent_of(self.g, *input);
                }
                self.give(*input, part);
            }
        }
    }

    /// Adds a part to the cotangent of a value: of one around the loop that is open, as a value that the loop captures.
    fn give(&mut self, x: Id, part: Id) {
        let scope = self.g.node(x).scope;
        match self.open.last_mut().filter(|l| scope != Some(l.forward)) {
            Some(open) => open.captured.entry(x).or_default().push(part),
            None => self.cotangents.entry(x).or_default().push(part),
        }
    }
}

/// `d(b1.up)`: what the cotangent of a value is called.
fn cotangent_of(g: &Graph, of: Id) -> Arc<str> {
    format!("d({})", g.path(of)).into()
}

/// The origin of what belongs to the cotangent of a value: its path and place, so that the same rules apply to it.
fn backward(g: &Graph, of: Id, class: Class) -> Origin {
    let o = &g.node(of).origin;
    Origin {
        class,
        phase: Phase::Backward,
        path: o.path.clone(),
        name: cotangent_of(g, of),
        span: o.span,
        full: false,
    }
}
