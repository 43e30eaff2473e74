//! What a device holds, and from when to when: a row for each buffer, of which the curve of memory is the sum.

use super::placed::PlacedTypes;
use super::pools::TextPool;
use meshwright_core::Compiled;
use meshwright_ops::{Class, Id};
use meshwright_plan::{BufId, Dim, Phase, Plan, Prim, ProgramInput, ProgramInputKind, StepLoop};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// What memory is for, from what stays longest to what goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MemoryKind {
    Parameters,
    OptimizerState,
    Gradients,
    /// What the forward pass keeps for the backward pass.
    Residuals,
    /// Copies that gathers, all-to-alls and permutes make of what others hold.
    Communication,
    Inputs,
    Workspace,
}

/// The kinds as the page names them.
pub(super) const KINDS: [&str; 7] =
    ["parameters", "optimizer state", "gradients", "residuals", "communication", "inputs", "workspace"];

/// A buffer that a device holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HeldBuffer {
    /// The path of its value, by its place among the texts.
    path: usize,
    /// By its place among the types.
    of: usize,
    kind: MemoryKind,
    /// The first step during which it is held.
    begin: usize,
    /// The first step during which it is not: after its last use, or where a result takes its storage.
    end: usize,
}

/// As a row of numbers: a Plan may have some ten thousand.
impl Serialize for HeldBuffer {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (self.path, self.of, self.kind as u8, self.begin, self.end).serialize(s)
    }
}

/// From when to when each buffer is held; none for one that nothing writes.
fn lifetimes(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut held: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    let last = plan.steps.len();
    for input in &plan.program_inputs {
        held[input.buf.0 as usize] = Some((0, last));
    }
    for (i, step) in plan.steps.iter().enumerate() {
        for o in &step.writes {
            held[o.buf.0 as usize] = Some((i, last));
        }
        let ends = step.aliases.iter().map(|(from, _)| (*from, i));
        for (buf, end) in ends.chain(step.free.iter().map(|b| (*b, i + 1))) {
            if let Some((_, old)) = &mut held[buf.0 as usize] {
                *old = end;
            }
        }
    }
    held
}

/// The buffer of a path, as the page names it.
type Names<'a> = BTreeMap<BufId, &'a str>;

/// The path of each buffer. What a loop carries is called in all iterations what an iteration makes of it: the buffers that it
/// starts from and ends in are otherwise those of the loop as a whole.
fn names(plan: &Plan) -> Names<'_> {
    let mut names: Names<'_> = plan.program_inputs.iter().map(|i| (i.buf, &*i.name)).collect();
    for step in &plan.steps {
        for (k, o) in step.writes.iter().enumerate() {
            let path = step.origin.get(k).or(step.origin.first()).map_or("", |p| &*p.path);
            names.entry(o.buf).or_insert(path);
        }
    }
    let blank = |b: BufId| plan.steps.iter().any(|s| matches!(s.prim, Prim::Blank { .. }) && s.writes_buf(b));
    for l in plan.loops() {
        for [start, current, next, last] in carries(plan, &l) {
            if let Some(name) = names.get(&next).copied() {
                names.extend([(current, name), (last, name)]);
                names.extend(blank(start).then_some((start, name)));
            }
        }
    }
    // Next values are those of the step's end, whatever computes them.
    names.extend(plan.program_inputs.iter().filter_map(|i| Some((i.next?, &*i.name))));
    names
}

/// What a loop carries: what each starts as, what it is in an iteration and next, and what it is at the end.
fn carries<'a>(plan: &'a Plan, l: &StepLoop) -> impl Iterator<Item = [BufId; 4]> + use<'a> {
    let (begin, end) = (&plan.steps[l.begin], &plan.steps[l.end]);
    let before = begin.reads.iter().zip(&begin.writes);
    let after = end.reads.iter().zip(&end.writes);
    before.zip(after).map(|((start, current), (next, last))| [start.buf, current.buf, next.buf, last.buf])
}

/// What each buffer is for.
fn kinds(compiled: &Compiled, held: &[Option<(usize, usize)>], names: &Names<'_>) -> Vec<MemoryKind> {
    let (plan, graph) = (&compiled.plan, &compiled.spmd.step.graph);
    let parameters: BTreeSet<String> =
        of_kind(plan, &ProgramInputKind::Param).map(|i| format!("d({})", i.name)).collect();
    let mut kinds = vec![MemoryKind::Workspace; plan.buffers.len()];
    for step in &plan.steps {
        let copies = step.collective().is_some_and(|c| !c.kind().folds());
        for (k, o) in step.writes.iter().enumerate() {
            let from = step.origin.get(k).or(step.origin.first());
            let class = from.map_or(Class::Value, |f| graph.node(Id(f.id)).origin.class);
            let is_gradient =
                class == Class::Grad || names.get(&o.buf).is_some_and(|n| parameters.contains(*n));
            let end = held[o.buf.0 as usize].map_or(0, |h| h.1);
            // What nothing reads in another part of the step goes no further.
            let ends_later = plan.steps.get(end.max(1) - 1).is_some_and(|s| s.phase != Phase::Forward);
            kinds[o.buf.0 as usize] = match step.phase {
                Phase::Backward | Phase::Update if is_gradient => MemoryKind::Gradients,
                _ if copies => MemoryKind::Communication,
                Phase::Forward if ends_later && end < plan.steps.len() => MemoryKind::Residuals,
                _ => MemoryKind::Workspace,
            };
        }
    }
    // What a loop carries is for the same in all iterations as what it is after the last.
    for all in plan.loops().iter().flat_map(|l| carries(plan, l)) {
        let known = all.iter().rev().map(|b| kinds[b.0 as usize]).find(|k| *k != MemoryKind::Workspace);
        for b in all {
            let old = &mut kinds[b.0 as usize];
            if let (MemoryKind::Workspace, Some(known)) = (*old, known) {
                *old = known;
            }
        }
    }
    for input in &plan.program_inputs {
        let kind = match input.kind {
            ProgramInputKind::Param => MemoryKind::Parameters,
            ProgramInputKind::OptimizerState => MemoryKind::OptimizerState,
            ProgramInputKind::Input | ProgramInputKind::StepNumber => MemoryKind::Inputs,
        };
        for buf in [Some(input.buf), input.next].into_iter().flatten() {
            kinds[buf.0 as usize] = kind;
        }
    }
    kinds
}

fn of_kind<'a>(plan: &'a Plan, kind: &'a ProgramInputKind) -> impl Iterator<Item = &'a ProgramInput> {
    plan.program_inputs.iter().filter(move |i| i.kind == *kind)
}

/// All buffers of a Plan.
pub(super) fn held(
    compiled: &Compiled,
    types: &mut PlacedTypes<'_>,
    texts: &mut TextPool,
) -> Vec<HeldBuffer> {
    let plan = &compiled.plan;
    let (held, names) = (lifetimes(plan), names(plan));
    let kinds = kinds(compiled, &held, &names);
    // A buffer's dims have the names by which it is bound or written.
    let bound = plan.program_inputs.iter().map(|i| (i.buf, &*i.dims));
    let written = plan.steps.iter().flat_map(|s| &s.writes).map(|o| (o.buf, &*o.dims));
    let dims: BTreeMap<BufId, &[Dim]> = bound.chain(written).collect();
    let row = |i: usize| {
        let buf = BufId(i as u32);
        // What nothing writes takes no memory: it is there for its place alone.
        let (begin, end) = held[i].unwrap_or((0, 0));
        let path = texts.at(names.get(&buf).copied().unwrap_or_default());
        let of = types.of(buf, dims.get(&buf).copied().unwrap_or_default(), texts);
        HeldBuffer { path, of, kind: kinds[i], begin, end }
    };
    (0..plan.buffers.len()).map(row).collect()
}
