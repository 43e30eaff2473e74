//! Microbatches: a training step that takes its batch in parts and sums their gradients before it uses them, in the memory of one
//! part (gradient accumulation; Huang et al. 2019, "GPipe", section 2.3).
//!
//! Before: a step on the whole batch, forward and backward. After: a loop over the parts, in which the dim of the examples has
//! one `n`-th of its size. Example `i * n + k` is the `i`-th of part `k`, so that a device keeps its examples however many parts
//! there are. A sum over examples leaves the loop as the sum over all parts; what reads it comes behind the loop. So clipping
//! and the optimizer see the gradients of the batch, which are what they are without parts, but for rounding.

mod carried_sums;
mod levels;
mod loop_separation;
mod parts;
mod rebuild;
mod stages;
mod sums;

use crate::layout::{Layout, RuleDim};
use crate::passes::linear::{ScopeItem, linearized};
use crate::passes::normalize::dead_code;
use crate::passes::stages::Stages;
use crate::step::step_graph::{OutputKind, StepGraph};
use levels::{Levels, levels};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Graph, Id};
use meshwright_plan::{Dim, Microbatches};
use meshwright_sorted::SortedMap;
use parts::{BatchPart, Mixed, parts};
pub(crate) use rebuild::Batch;
use rebuild::{Open, Rebuild};
use stages::{NoPipeline, PipelineFix};

/// The dims that a step in parts needs, added to it, and the layout with the rules for them; `None` where the layout asks for
/// no parts, or the step does not train.
pub(crate) fn planned(
    step: &mut StepGraph,
    layout: &Layout,
    stages: Option<Stages>,
) -> Result<Option<(Batch, Layout)>, Box<Diagnostic>> {
    // A pipeline takes its batch in parts, if only in one.
    let one = layout.pipeline.as_ref().filter(|_| stages.is_some()).map(|p| (1, p.span));
    // So does an evaluation, in order that stages work at once.
    let evaluates = step.program == "eval" && stages.is_some();
    let asked = layout.microbatches.or(one).filter(|_| step.program == "train" || evaluates);
    let Some((n, span)) = asked else { return Ok(None) };
    let Some(dim) = step.inputs.first().and_then(|i| i.dims.first().copied()) else {
        let d = Diagnostic::error(codes::E0313, "a model without inputs has no batch to take in parts");
        return Err(Box::new(d.at(span, "asked for here").help("leave it out")));
    };
    let dims = &mut step.graph.dims;
    let (name, size) = (dims.name(dim).to_string(), dims.size(dim));
    // The examples that batches leave over have other divisors.
    let n =
        if evaluates { (1..=n.min(size)).rev().find(|n| size.is_multiple_of(*n)).unwrap_or(1) } else { n };
    if n == 0 {
        let d = Diagnostic::error(codes::E0313, "a step takes its batch in at least one part");
        return Err(Box::new(d.at(span, "no part").help("write `microbatches 1`")));
    }
    if !size.is_multiple_of(n) {
        return Err(Box::new(uneven(&name, size, n, span)));
    }
    if n == 1 && (stages.is_none() || evaluates) {
        return Ok(None);
    }
    let over = dims.make("microbatch", n, None);
    let whole = dims.make(&format!("{name}*microbatch"), size, Some(dim));
    let mut layout = layout.clone();
    let of_whole = layout.rules.iter().filter(|r| r.dim == RuleDim::Dim(dim)).cloned();
    let of_whole: Vec<_> = of_whole.map(|r| crate::layout::Rule { dim: RuleDim::Dim(whole), ..r }).collect();
    layout.rules.extend(of_whole);
    Ok(Some((Batch { n, parts: Microbatches { dim, over }, whole, span, stages, evaluates }, layout)))
}

fn uneven(name: &str, size: usize, n: usize, span: Span) -> Diagnostic {
    let divisors: Vec<String> =
        (1..=size).filter(|d| size.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    let listed = match divisors.len() {
        0..=24 => divisors.join(", "),
        many => format!("{}, … ({many} in all)", divisors[..24].join(", ")),
    };
    let near = (1..=size).filter(|d| size.is_multiple_of(*d)).min_by_key(|d| d.abs_diff(n)).unwrap_or(1);
    Diagnostic::error(codes::E0313, format!("`{name}` = {size} has no {n} equal parts"))
        .at(span, format!("{size} / {n} is no integer"))
        .note(format!("the divisors of {size} are {listed}"))
        .help(format!(
            "write `microbatches {near}`, or take a batch of another size: `--dim {name}={}`",
            size.next_multiple_of(n)
        ))
}

/// Takes a step in parts; an evaluation whose examples must meet stays whole.
pub(crate) fn in_parts(step: &StepGraph, batch: &Batch, found: &mut Vec<Diagnostic>) -> Option<StepGraph> {
    let mut step = loop_separation::separated(step, batch.parts.dim);
    if let Some(stages) = &batch.stages {
        step = carried_sums::carried(&step, batch.parts.dim, stages);
    }
    match taken(&step, batch) {
        Ok(step) => Some(step),
        Err(_) if step.program == "eval" => Some(step),
        Err(Untaken::Mixed(mixed)) => {
            found.push(told(&step, batch, &mixed));
            None
        }
        Err(Untaken::NoPipeline(problem)) => {
            found.push(no_pipeline(&step, batch, &problem));
            None
        }
    }
}

/// Why a step is not taken in parts.
enum Untaken {
    /// Examples of different parts meet.
    Mixed(Mixed),
    /// The parts cannot pass stages.
    NoPipeline(NoPipeline),
}

impl From<Mixed> for Untaken {
    fn from(mixed: Mixed) -> Self {
        Untaken::Mixed(mixed)
    }
}

impl From<NoPipeline> for Untaken {
    fn from(problem: NoPipeline) -> Self {
        Untaken::NoPipeline(problem)
    }
}

fn no_pipeline(step: &StepGraph, batch: &Batch, problem: &NoPipeline) -> Diagnostic {
    let g = &step.graph;
    let name = batch.stages.map_or("", |s| g.dims.name(s.dim));
    let help = match problem.fix {
        PipelineFix::Carry => {
            "make it a carry of the loop, which is sent from stage to stage, or leave the rule out".into()
        }
        PipelineFix::OwnDim => {
            let size = batch.stages.map_or(0, |s| g.dims.size(s.dim));
            format!(
                "outside of the loop give it a dim of its own in place of `{name}`, such as `dim of_{name} = {size}`, or leave the rule out"
            )
        }
        PipelineFix::OneLoss => {
            "minimize one loss through the layers, as the sum of several (`loss both = …`), or leave the rule out".into()
        }
        PipelineFix::NoRule => "leave the rule out".into(),
    };
    Diagnostic::error(codes::E0315, format!("the loop over `{name}` cannot be a pipeline"))
        .at(g.node(problem.at).origin.span, format!("`{}`: {}", g.path(problem.at), problem.why))
        .and(batch.stages.map_or(batch.span, |s| s.span), "its iterations would be stages")
        .help(help)
}

fn told(step: &StepGraph, batch: &Batch, mixed: &Mixed) -> Diagnostic {
    let g = &step.graph;
    let name = g.dims.name(batch.parts.dim);
    let what = g.path(mixed.at);
    // Without `microbatches` a pipeline is what asks for parts, and what stands there is its rule.
    let by_rule = batch.stages.is_some_and(|s| s.span == batch.span);
    let parts = if batch.n == 1 { "one part".into() } else { format!("{} parts", batch.n) };
    let (message, asked, out) = match by_rule {
        true => (
            format!("the step cannot pass a pipeline: examples of `{name}` meet in it"),
            "this rule makes a pipeline, whose stages take examples in parts that do not meet",
            "leave the rule out",
        ),
        false => (format!("the step cannot take `{name}` in {parts}"), "asked for here", "leave it out"),
    };
    Diagnostic::error(codes::E0313, message)
        .at(g.node(mixed.at).origin.span, format!("`{what}`: {}", mixed.why))
        .and(batch.span, asked)
        .help(format!(
            "{out}, or reduce `{name}` once, by a `sum` or `mean` behind all that is computed of each example"
        ))
}

fn taken(step: &StepGraph, batch: &Batch) -> Result<StepGraph, Untaken> {
    let old = &step.graph;
    let parts = parts(old, batch.parts.dim)?;
    let levels = levels(old, &parts)?;
    let kept = |o: &&crate::StepOutput| parts[o.id] == BatchPart::Examples;
    if let Some(o) = step.outputs.iter().find(kept) {
        return Err(Mixed { at: o.id, why: "what a step gives has the dim of the examples".into() }.into());
    }
    let mut dims = old.dims.clone();
    dims.resize(batch.parts.dim, old.dims.size(batch.parts.dim) / batch.n);
    let mut new = Graph::new(dims);
    new.microbatches = Some(batch.parts);
    let mut r =
        Rebuild { old, new, batch, parts: &parts, now: old.nodes.table(None), given: SortedMap::new() };
    all(&mut r, &levels)?;
    let Rebuild { new, now, .. } = r;
    let mut out = step.with_graph(new);
    let of = |id: Id| now[id].unwrap_or_else(|| panic!("internal error: {} is not made", old.describe(id)));
    for goal in &mut out.outputs {
        goal.id = of(goal.id);
        if let OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = of(*leaf);
        }
    }
    for input in &mut out.inputs {
        let whole = |d: &mut Dim| *d = if *d == batch.parts.dim { batch.whole } else { *d };
        input.dims.iter_mut().chain(&mut input.range).for_each(whole);
    }
    Ok(dead_code(&linearized(sums::joined(&out, batch.parts.over))))
}

/// Makes all levels.
fn all(r: &mut Rebuild<'_>, levels: &Levels) -> Result<(), NoPipeline> {
    for level in 0..=levels.count {
        let mut around = Open::default();
        for item in levels.order.iter().filter(|i| levels.outside.get(i) == Some(&level)) {
            r.item(*item, &levels.values[item], &mut around);
        }
        if level == levels.count {
            return Ok(());
        }
        let here = |i: &&ScopeItem| levels.inside.get(i).is_some_and(|l| l.contains(&level));
        let mine: Vec<ScopeItem> = levels.order.iter().filter(here).copied().collect();
        if let Some(stages) = r.batch.stages.filter(|_| level + 1 == levels.count) {
            stages::make(r, &mine, levels, stages)?;
            continue;
        }
        if let Some(stages) = &r.batch.stages {
            stages::passes_no_layers(r, &mine, levels, stages)?;
        }
        let of = r.new.repeat(r.batch.parts.over, false);
        let mut open = Open { of: Some(of), ..Open::default() };
        for item in &mine {
            r.item(*item, &levels.values[item], &mut open);
        }
        for item in &mine {
            r.leave(of, &levels.values[item], &open);
        }
    }
    Ok(())
}
