//! `reduce grads in bf16`: which partial sums are rounded before a collective adds them up, and which copies stay rounded after.
//!
//! Where values stand does not depend on it: the collectives are those of the layout without that line, with half the bytes.

use super::facts::Facts;
use super::reshard::Reshard;
use super::spmd::{CopyId, Spmd};
use super::walk::Walk;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Boundary, Crossing, Graph, Id, Kind, Role};
use meshwright_plan::{DType, IdVec, Monoid};
use std::collections::BTreeSet;

impl Facts<'_> {
    /// Of each value whether it is a gradient of a parameter, or only ever added up and moved to become one: what devices sum of it
    /// is then reduced in `bf16`. False of all where the layout does not ask for that.
    pub(super) fn gradient_terms(&self) -> IdVec<Id, bool> {
        let g = self.graph();
        let mut terms = g.nodes.table(false);
        if self.layout.reduce_grads.is_none() {
            return terms;
        }
        // Users come after what they use, so theirs are known.
        for id in g.ids().rev() {
            let kept = self.is_output(id) || !self.carries_of(id).is_empty();
            let users = self.users(id);
            let becomes = |u: &Id| terms[*u] && self.hands_on_term(*u, id);
            let term = self.is_gradient(id) || !users.is_empty() && users.iter().all(becomes);
            terms[id] = term && !kept && g.ty(id).dtype == DType::F32;
        }
        terms
    }

    /// Whether an op only adds, moves or scales the terms of a sum, so that what it gives of a gradient's term is one as well. Every
    /// cotangent ends in gradients by products and sums over examples: these are not looked through.
    fn hands_on_term(&self, user: Id, term: Id) -> bool {
        match self.kind(user) {
            Kind::Gradient | Kind::Add | Kind::Rename { .. } => true,
            Kind::Boundary(b) => matches!(b.how, Crossing::Stack | Crossing::Accumulate),
            Kind::Compute(_) => {
                let inputs = &self.node(user).inputs;
                let slots: BTreeSet<usize> = (0..inputs.len()).filter(|s| inputs[*s] == term).collect();
                let scalars = inputs.iter().all(|x| *x == term || self.graph().ty(*x).dims.is_empty());
                let folds = self.roles(user).loops.iter().any(|l| matches!(l.role, Role::Reduction(_)));
                scalars && !folds && self.linear_in(user, &slots)
            }
            _ => false,
        }
    }
}

impl Walk<'_> {
    /// Whether a reshard step makes a copy in `bf16`: it adds up terms of a gradient, or moves what is stored so.
    pub(super) fn reshards_in_bf16(&self, id: Id, kind: &Reshard, from: CopyId) -> bool {
        self.state.copies[from].in_bf16 || sums(kind) && self.facts.gradient_terms[id]
    }
}

/// Whether a reshard step adds up partial sums.
pub(crate) fn sums(kind: &Reshard) -> bool {
    kind.collective().is_some_and(|c| c.spec().monoid == Some(Monoid::Sum))
}

/// Whether an op gives its operand as it is stored.
pub(crate) fn keeps_storage(g: &Graph, id: Id) -> bool {
    let stacks = matches!(g.boundary(id), Some(Boundary { how: Crossing::Stack, .. }));
    stacks || matches!(g.node(id).op.kind(), Kind::Gradient | Kind::Rename { .. })
}

/// The note that no gradient of a training step is reduced in `bf16`, although the layout asks for it at `asked`.
pub(super) fn no_effect(spmd: &Spmd, asked: Span) -> Option<Diagnostic> {
    if spmd.step.program != "train" || spmd.copies.iter().any(|c| c.in_bf16) {
        return None;
    }
    let g = &spmd.step.graph;
    let in_f64 = |id: Id| g.node(id).op.kind() == Kind::Gradient && g.ty(id).dtype == DType::F64;
    let (because, help) = if spmd.mesh.devices() == 1 {
        ("there is one device", "leave it out, or give a mesh of several devices: `--mesh data=2`")
    } else if g.ids().any(in_f64) {
        ("gradients are `f64`", "leave it out, or compute in `f32`: `--precision f32`")
    } else {
        ("no gradient is summed over devices", "leave it out, or split the batch: `batch -> data`")
    };
    let text = format!("`reduce grads in bf16` changes nothing here: {because}");
    Some(Diagnostic::note_message(codes::E0314, text).at(asked, "no effect").help(help))
}
