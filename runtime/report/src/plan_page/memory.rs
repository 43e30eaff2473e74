//! What a device holds, and from when to when: a row for each buffer, of which the curve of memory is the sum.

use super::TextPool;
use super::placed::PlacedTypes;
use meshwright_core::Compiled;
use meshwright_ops::{Class, Id};
use meshwright_plan::{BufId, Phase, Plan, ProgramInputKind};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

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

/// What each buffer is for.
fn kinds(compiled: &Compiled, held: &[Option<(usize, usize)>]) -> Vec<MemoryKind> {
    let (plan, graph) = (&compiled.plan, &compiled.spmd.step.graph);
    let mut kinds = vec![MemoryKind::Workspace; plan.buffers.len()];
    for step in &plan.steps {
        let copies = step.collective().is_some_and(|c| !c.kind().folds());
        for (k, o) in step.writes.iter().enumerate() {
            let from = step.origin.get(k).or(step.origin.first());
            let class = from.map_or(Class::Value, |f| graph.node(Id(f.id)).origin.class);
            let end = held[o.buf.0 as usize].map_or(0, |h| h.1);
            // What nothing reads in another part of the step goes no further.
            let ends_later = plan.steps.get(end.max(1) - 1).is_some_and(|s| s.phase != Phase::Forward);
            kinds[o.buf.0 as usize] = match (step.phase, class) {
                _ if copies => MemoryKind::Communication,
                (_, Class::Grad) => MemoryKind::Gradients,
                (Phase::Forward, _) if ends_later && end < plan.steps.len() => MemoryKind::Residuals,
                _ => MemoryKind::Workspace,
            };
        }
    }
    carried(plan, &mut kinds);
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

/// What a loop carries is for the same in all iterations as what it is after the last.
fn carried(plan: &Plan, kinds: &mut [MemoryKind]) {
    for l in plan.loops() {
        let (begin, end) = (&plan.steps[l.begin], &plan.steps[l.end]);
        let all = begin.reads.iter().zip(&begin.writes).zip(end.reads.iter().zip(&end.writes));
        for ((start, current), (next, last)) in all {
            let kind = kinds[last.buf.0 as usize];
            for o in [start, current, next] {
                let old = &mut kinds[o.buf.0 as usize];
                if *old == MemoryKind::Workspace {
                    *old = kind;
                }
            }
        }
    }
}

/// All buffers of a Plan.
pub(super) fn held(
    compiled: &Compiled,
    types: &mut PlacedTypes<'_>,
    texts: &mut TextPool,
) -> Vec<HeldBuffer> {
    let plan = &compiled.plan;
    let held = lifetimes(plan);
    let kinds = kinds(compiled, &held);
    let mut named: BTreeMap<BufId, (&str, &[meshwright_plan::Dim])> = BTreeMap::new();
    for input in &plan.program_inputs {
        named.insert(input.buf, (&input.name, &input.dims));
    }
    for step in &plan.steps {
        for (k, o) in step.writes.iter().enumerate() {
            let path = step.origin.get(k).or(step.origin.first()).map_or("", |p| &*p.path);
            named.entry(o.buf).or_insert((path, &o.dims));
        }
    }
    for input in &plan.program_inputs {
        if let Some(named) = input.next.and_then(|next| named.get_mut(&next)) {
            named.0 = &input.name;
        }
    }
    let nothing: (&str, &[meshwright_plan::Dim]) = ("", &[]);
    let row = |i: usize| {
        let buf = BufId(i as u32);
        // What nothing writes takes no memory: it is there for its place alone.
        let (begin, end) = held[i].unwrap_or((0, 0));
        let (path, dims) = named.get(&buf).copied().unwrap_or(nothing);
        let (path, of) = (texts.at(path), types.of(buf, dims, texts));
        HeldBuffer { path, of, kind: kinds[i], begin, end }
    };
    (0..plan.buffers.len()).map(row).collect()
}
