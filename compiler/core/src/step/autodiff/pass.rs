//! What a walk from a loss back to the parameters knows, and the gradient of one op.

use crate::step::stack_part::StackPart;
use meshwright_ops::{Class, Crossing, Graph, Id, Kind, Node, Origin, Precision, RepeatId, Type};
use meshwright_plan::{IdVec, Phase};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// A loop that is being differentiated.
pub(super) struct BackwardLoop {
    /// The loop.
    pub(super) forward: RepeatId,
    /// Its gradient.
    pub(super) backward: RepeatId,
    /// Parts, in the backward body, of cotangents of values around the loop.
    pub(super) captured: SortedMap<Id, Vec<Id>>,
    /// Values around the loop of which the body reads slices, with the cotangents of these.
    pub(super) slices: Vec<(Id, Id)>,
}

/// One walk from a loss back to the parameters.
pub(super) struct BackwardPass<'g> {
    pub(super) g: &'g mut Graph,
    /// The values of the body of each loop, and what leaves it.
    pub(super) bodies: SortedMap<RepeatId, Vec<Id>>,
    pub(super) outs: SortedMap<RepeatId, Vec<(Id, Crossing)>>,
    pub(super) wanted: SortedSet<Id>,
    /// The parts of stacked parameters whose gradients nothing reads.
    pub(super) frozen: SortedMap<Id, &'g [StackPart]>,
    pub(super) needs: IdVec<Id, bool>,
    /// Values of the forward pass that a rename alone reads.
    pub(super) only_renamed: SortedSet<Id>,
    /// The parts of the cotangent of each value that has not been visited yet.
    pub(super) cotangents: SortedMap<Id, Vec<Id>>,
    pub(super) found: SortedMap<Id, Id>,
    /// The loops in whose bodies the walk is, outermost first.
    pub(super) open: Vec<BackwardLoop>,
    /// Values of a body as the backward loop that is named reads them.
    pub(super) brought: SortedMap<(RepeatId, Id), Id>,
}

impl BackwardPass<'_> {
    pub(super) fn visit(&mut self, id: Id, parts: &[Id]) {
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
        let residuals = self.residuals(&node);
        let operands: Vec<Id> = node.inputs.iter().chain(&residuals).map(|x| self.bring(*x)).collect();
        let result = self.bring(id);
        let layer = node.origin.layer;
        self.g.cursor = Origin { full, layer, ..backward(self.g, id, Class::Value) };
        if let Some(root) = self.norm_root(id) {
            let reduced = root.reduced(self.g, result, dy);
            self.hand_to_squares(node.inputs[0], reduced, &|g, x| root.moved(g, operands[0], result, x));
            return;
        }
        for (input, part) in self.parts(&node, &operands, result, dy, &need) {
            self.give(input, part);
        }
    }

    /// What the cotangent of a value adds to that of each operand which needs one.
    pub(super) fn parts(
        &mut self,
        node: &Node,
        operands: &[Id],
        result: Id,
        dy: Id,
        need: &[bool],
    ) -> Vec<(Id, Id)> {
        let made = self.g.nodes.len() as u32;
        let parts = node.op.vjp(self.g, operands, result, dy, need);
        let mut out = Vec::new();
        for ((input, part), need) in node.inputs.iter().zip(parts).zip(need) {
            if let (Some(part), true) = (part, need) {
                // Placed as the op's own values are, it is a cotangent of the operand.
                if part.0 >= made {
                    self.g.nodes[part].origin.name = cotangent_of(self.g, *input);
                }
                out.push((*input, part));
            }
        }
        out
    }

    /// What an op wants to be kept of the forward pass, where it stands there.
    fn residuals(&mut self, of: &Node) -> Vec<Id> {
        let scope = std::mem::replace(&mut self.g.scope, of.scope);
        self.g.cursor = of.origin.clone();
        let residuals = of.op.residuals(self.g, &of.inputs);
        self.g.scope = scope;
        residuals
    }

    /// Adds a part to the cotangent of a value: of one around the loop that is open, as a value that the loop captures.
    pub(super) fn give(&mut self, x: Id, part: Id) {
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
pub(super) fn backward(g: &Graph, of: Id, class: Class) -> Origin {
    let o = &g.node(of).origin;
    Origin {
        class,
        phase: Phase::Backward,
        path: o.path.clone(),
        name: cotangent_of(g, of),
        span: o.span,
        full: false,
        layer: false,
    }
}
