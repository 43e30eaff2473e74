//! `reduce grads in bf16`: which partial sums are rounded before a collective adds them up, and which copies stay rounded after.
//!
//! Placements do not depend on it: the collectives are those of the layout without that line, with half the bytes.

use super::reshard::Reshard;
use super::spmd::Spmd;
use crate::layout::Layout;
use crate::step::step_graph::StepGraph;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Boundary, Crossing, Graph, Id, Kind, Role};
use meshwright_plan::{DType, IdVec, Monoid};
use meshwright_sorted::SortedSet;

/// Of each value whether it is a gradient of a parameter, or only ever added up and moved to become one: a sum over devices of it
/// may be taken in `bf16`.
pub(crate) fn gradient_terms(step: &StepGraph) -> IdVec<Id, bool> {
    let g = &step.graph;
    // Outputs of the step, and carries of a loop, are read there too.
    let mut kept = g.nodes.table(false);
    let nexts = g.repeats.iter().flat_map(|r| &r.carries).map(|(_, next)| *next);
    nexts.chain(step.outputs.iter().map(|o| o.id)).for_each(|id| kept[id] = true);
    // Whether all users seen so far hand it on to a gradient; `None` before the first.
    let mut handed_on: IdVec<Id, Option<bool>> = g.nodes.table(None);
    let mut terms = g.nodes.table(false);
    // Users come after what they use.
    for id in g.ids().rev() {
        let term = g.node(id).op.kind() == Kind::Gradient || handed_on[id] == Some(true);
        terms[id] = term && !kept[id] && g.ty(id).dtype == DType::F32;
        for x in &g.node(id).inputs {
            let becomes = terms[id] && hands_on_term(g, id, *x);
            handed_on[*x] = Some(handed_on[*x].unwrap_or(true) && becomes);
        }
    }
    terms
}

/// Whether an op only adds, moves or scales the terms of a sum, so that what it gives of a gradient's term is one as well. Every
/// cotangent ends in gradients by products and sums over examples: these are not looked through.
fn hands_on_term(g: &Graph, user: Id, term: Id) -> bool {
    let node = g.node(user);
    match node.op.kind() {
        Kind::Gradient | Kind::Add | Kind::Rename { .. } => true,
        Kind::Boundary(b) => matches!(b.how, Crossing::Stack | Crossing::Accumulate),
        Kind::Compute(_) => {
            let roles = node.op.roles(&g.input_types(user), &node.ty, &g.dims);
            let slots: SortedSet<usize> =
                (0..node.inputs.len()).filter(|s| node.inputs[*s] == term).collect();
            let scalars = node.inputs.iter().all(|x| *x == term || g.ty(*x).dims.is_empty());
            let folds = roles.loops.iter().any(|l| matches!(l.role, Role::Reduction(_)));
            scalars && !folds && roles.linear_in(&slots, node.inputs.len())
        }
        _ => false,
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

/// The note that it makes no difference when gradients are reduced, although the layout says when at `asked`: the batch is in one
/// part, or no rule splits a gradient.
pub(super) fn no_choice(step: &StepGraph, layout: &Layout) -> Option<Diagnostic> {
    let (when, asked) = layout.reduce_when.filter(|_| step.program == "train")?;
    let rules = layout.effective().rules;
    let because = if step.graph.microbatches.is_none() {
        "the batch is in one part"
    } else if !rules.iter().any(|r| r.scope.kind.is_some() && !r.axes.is_empty()) {
        "no rule splits gradients over devices"
    } else {
        return None;
    };
    let text = format!("`reduce grads {}` changes nothing here: {because}", when.words());
    let help =
        "leave it out; it is for `microbatches` with `grads: * -> data`, or with `params:` or `moments:`";
    Some(Diagnostic::note_message(codes::E0314, text).at(asked, "no effect").help(help))
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
