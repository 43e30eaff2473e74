//! Stages of a pipeline: the dims of a program in which a loop is split over devices.
//!
//! The ends of a pipeline are loops of one iteration over dims of their own, of which one stage has the position that counts.

use crate::layout::{Layout, Rule, RuleDim};
use crate::passes::linear::linearized;
use crate::passes::normalize::rebuild_in;
use crate::step::step_graph::StepGraph;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Crossing, Graph, Id, Kind, Source};
use meshwright_plan::Dim;
use meshwright_sorted::{SortedMap, SortedSet};

/// The dims of a program with stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    /// The dim of the loop that is split.
    pub dim: Dim,
    /// A dim of one position, which the first stage has.
    pub first: Dim,
    /// A dim of a position for each stage.
    pub last: Dim,
    /// The position of `last` that counts, that of the last stage.
    pub from: usize,
    /// The rule that splits the loop.
    pub span: Span,
}

/// The dims that a step with stages needs, added to it, and the layout with the rules for them; `None` where the layout splits no
/// loop of it.
pub(crate) fn planned(step: &mut StepGraph, layout: &Layout) -> Option<(Stages, Layout)> {
    let pipeline = layout.pipeline.as_ref()?;
    if !step.graph.repeats.iter().any(|r| r.dim == pipeline.dim) {
        return None;
    }
    let dims = &mut step.graph.dims;
    layout.cut_stages(dims);
    let count: usize = pipeline.axes.iter().map(|a| layout.mesh.size(*a)).product();
    let first = dims.make("first_stage", 1, Some(pipeline.dim));
    let last = dims.make("last_stage", count, Some(pipeline.dim));
    let mut layout = layout.clone();
    let same = |r: &&Rule| r.dim == RuleDim::Dim(pipeline.dim) && r.span == pipeline.span;
    let of_loop = layout.rules.iter().find(same).cloned();
    for end in [first, last] {
        layout.rules.extend(of_loop.iter().map(|r| Rule { dim: RuleDim::Dim(end), ..r.clone() }));
    }
    Some((Stages { dim: pipeline.dim, first, last, from: count - 1, span: pipeline.span }, layout))
}

/// The error of a value for which the stages of a pipeline cannot have the lengths that a layout gives them: one that has the
/// positions of the loop under another name, or where they are stored in another order, one that is made of their numbers.
pub(crate) fn uncut(g: &Graph, layout: &Layout) -> Option<Diagnostic> {
    let rule = layout.pipeline.as_ref()?;
    let cuts = g.dims.cuts(rule.dim)?;
    let name = g.dims.name(rule.dim);
    let why = |id: &Id| match g.node(*id).op.kind() {
        Kind::Rename { from, to } if from == rule.dim || to == rule.dim => Some("gives another name to"),
        Kind::Rematerializable(Source::Position | Source::Random)
            if cuts.reorders() && g.ty(*id).has(rule.dim) =>
        {
            Some("is made of the numbers of")
        }
        _ => None,
    };
    let (id, why) = g.ids().find_map(|id| Some((id, why(&id)?)))?;
    let (cannot, line) =
        if cuts.reorders() { ("be in chunks", "chunks") } else { ("have these lengths", "stages") };
    let text = format!("the stages of `{name}` cannot {cannot}");
    let d = Diagnostic::error(codes::E0315, text)
        .at(g.node(id).origin.span, format!("`{}` {why} the positions of `{name}`", g.path(id)));
    Some(d.and(rule.span, "its iterations are stages").help(format!("leave `{line}` out")))
}

/// Brings what a loop over stages gives to all of them, where no loop over the parts of a batch is around it: stages then run one
/// after the other.
pub(crate) fn given_to_all(step: &StepGraph, stages: &Stages) -> StepGraph {
    let mut step = step.clone();
    let g = &mut step.graph;
    let given = |g: &Graph, id: Id| {
        let of = g.boundary(id).filter(|b| b.how == Crossing::Final && b.dim == stages.dim);
        of.is_some_and(|b| g.repeats[b.of].parent.is_none())
    };
    let (mut whole, mut carries): (SortedMap<Id, Id>, SortedSet<Id>) = Default::default();
    // It is made where the loop ends: collectives keep this order, and what passes over microbatches read is there before the
    // first.
    let mut order: Vec<Id> = vec![];
    for id in g.ids().collect::<Vec<_>>() {
        order.push(id);
        if !given(g, id) {
            continue;
        }
        let made = g.nodes.len();
        (g.cursor, g.scope) = (g.node(id).origin.clone(), None);
        // A loop that runs backward ends on the first stage.
        let backward = g.boundary(id).is_some_and(|b| g.repeats[b.of].reverse);
        let (dim, from) = if backward { (stages.first, 0) } else { (stages.last, stages.from) };
        let end = g.repeat(dim, false);
        g.repeats[end].from = from;
        let carry = g.carry(end, id);
        carries.insert(carry);
        // A sum of one value needs no more places than it.
        let sum = g.cross(end, Crossing::Accumulate, carry);
        g.nodes[sum].ty.dtype = g.ty(id).dtype;
        whole.insert(id, sum);
        order.extend(g.ids().skip(made));
    }
    for id in g.ids().filter(|id| !carries.contains(id)).collect::<Vec<_>>() {
        for x in &mut g.nodes[id].inputs {
            *x = whole.get(x).copied().unwrap_or(*x);
        }
    }
    for goal in &mut step.outputs {
        goal.id = whole.get(&goal.id).copied().unwrap_or(goal.id);
    }
    linearized(rebuild_in(&step, order.into_iter(), |g, node, _| g.push(node)))
}
