//! Memory of a device by its use, over the steps of a Plan. All that tells of memory by use takes it from here.

use crate::{BufId, DeviceBlocks, Phase, Plan, Prim, ProgramInputKind, Step, StepLoop};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};

/// Uses of memory, from what stays longest to what goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Parameters.
    Parameters,
    /// State of the optimizer.
    OptimizerState,
    /// What the forward and the backward pass make of parameters alone: casts, gathered shards, a layer of all.
    WorkingCopies,
    /// Gradients of parameters.
    Gradients,
    /// Values of the forward pass for the backward pass.
    Residuals,
    /// Copies that gathers, all-to-alls and permutes make of what others hold.
    Communication,
    /// Data of a step.
    Inputs,
    /// All else.
    Workspace,
}

impl MemoryKind {
    /// All kinds, in order.
    pub const ALL: [MemoryKind; 8] = [
        MemoryKind::Parameters,
        MemoryKind::OptimizerState,
        MemoryKind::WorkingCopies,
        MemoryKind::Gradients,
        MemoryKind::Residuals,
        MemoryKind::Communication,
        MemoryKind::Inputs,
        MemoryKind::Workspace,
    ];

    /// As people call it.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryKind::Parameters => "parameters",
            MemoryKind::OptimizerState => "optimizer state",
            MemoryKind::WorkingCopies => "copies of parameters",
            MemoryKind::Gradients => "gradients",
            MemoryKind::Residuals => "residuals",
            MemoryKind::Communication => "communication",
            MemoryKind::Inputs => "inputs",
            MemoryKind::Workspace => "workspace",
        }
    }
}

/// Bytes by [`MemoryKind`].
pub type ByKind = [u64; MemoryKind::ALL.len()];

/// The lifetime of a buffer on a device, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Its use.
    pub kind: MemoryKind,
    /// The first step during which it is held.
    pub begin: usize,
    /// The first step during which it is not: after its last use, or where a result takes its storage. Of a buffer that nothing
    /// writes, 0.
    pub end: usize,
}

/// The path of each buffer that has one.
pub type Paths<'a> = SortedMap<BufId, &'a str>;

/// The path of each buffer. What a loop carries is called in all iterations what an iteration makes of it: the buffers that it
/// starts from and ends in are otherwise those of the loop as a whole.
pub fn paths(plan: &Plan) -> Paths<'_> {
    let mut paths: Paths<'_> = plan.program_inputs.iter().map(|i| (i.buf, &*i.name)).collect();
    for step in &plan.steps {
        for (k, o) in step.writes.iter().enumerate() {
            let path = step.origin.get(k).or(step.origin.first()).map_or("", |p| &*p.path);
            paths.entry(o.buf).or_insert(path);
        }
    }
    let blanks = plan.steps.iter().filter(|s| matches!(s.prim, Prim::Blank { .. }));
    let blanks: SortedSet<BufId> = blanks.flat_map(|s| &s.writes).map(|o| o.buf).collect();
    for l in plan.loops() {
        for [start, current, next, last] in plan.carries(&l) {
            if let Some(path) = paths.get(&next).copied() {
                paths.extend([(current, path), (last, path)]);
                paths.extend(blanks.contains(&start).then_some((start, path)));
            }
        }
    }
    // Next values are those of the step's end, whatever computes them.
    paths.extend(plan.program_inputs.iter().filter_map(|i| Some((i.next?, &*i.name))));
    paths
}

/// The lifetime and the use of each buffer of a Plan. A gradient is the cotangent of a parameter.
pub fn residency(plan: &Plan, paths: &Paths<'_>) -> Vec<Residency> {
    let lifetimes = lifetimes(plan);
    let kinds = kinds(plan, &lifetimes, paths);
    lifetimes.iter().zip(kinds).map(|(l, kind)| Residency { kind, begin: l.begin, end: l.end }).collect()
}

/// What a device holds, with its bytes: each buffer, then the messages on their way between stages, by the buffers that are sent
/// or received.
pub fn held_on<'a>(
    on: &'a DeviceBlocks<'_>,
    held: &'a [Residency],
) -> impl Iterator<Item = (BufId, Residency, u64)> + 'a {
    let buffers = held.iter().enumerate().map(|(i, held)| (BufId(i as u32), *held));
    let (begin, end) = on.passes();
    let message = Residency { kind: MemoryKind::Communication, begin, end };
    let messages = on.messages().iter().map(move |(buf, bytes)| (*buf, message, *bytes));
    buffers.map(|(buf, held)| (buf, held, on.bytes(buf))).chain(messages)
}

/// From when to when a buffer is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// The first step during which it is held.
    pub begin: usize,
    /// The first step during which it is not; of a buffer that nothing writes, 0.
    pub end: usize,
}

/// The lifetime of each buffer. What is alive between the passes of a pipeline, or next to them, is alive in all of them: a
/// schedule runs them in turns.
pub(crate) fn lifetimes(plan: &Plan) -> Vec<Lifetime> {
    let mut held = vec![Lifetime::default(); plan.buffers.len()];
    let last = plan.steps.len();
    for input in &plan.program_inputs {
        held[input.buf.0 as usize] = Lifetime { begin: 0, end: last };
    }
    for (i, step) in plan.steps.iter().enumerate() {
        for o in &step.writes {
            held[o.buf.0 as usize] = Lifetime { begin: i, end: last };
        }
        let ends = step.aliases.iter().map(|(from, _)| (*from, i));
        for (buf, end) in ends.chain(step.free.iter().map(|b| (*b, i + 1))) {
            held[buf.0 as usize].end = end;
        }
    }
    let Some(passes) = plan.pipeline_passes() else { return held };
    let (begin, end) = passes.steps();
    let within = |at: usize| passes.loops.iter().any(|(_, l)| l.begin < at && at < l.end);
    // Buffers that follow each other in one storage are one after the other in a pass, too.
    let follows: SortedMap<BufId, BufId> = plan.steps.iter().flat_map(|s| &s.aliases).copied().collect();
    let over: SortedSet<BufId> = follows.values().copied().collect();
    for first in (0..held.len()).map(|b| BufId(b as u32)).filter(|b| !over.contains(b)) {
        let last = std::iter::successors(Some(first), |b| follows.get(b).copied()).last().unwrap_or(first);
        let [from, to] = [held[first.0 as usize].begin, held[last.0 as usize].end];
        if from >= to || from >= end || to <= begin {
            continue;
        }
        if !within(from) && from > begin {
            held[first.0 as usize].begin = begin;
        }
        if !within(to - 1) && to < end {
            held[last.0 as usize].end = end;
        }
    }
    held
}

impl Plan {
    /// Carries of a loop: what each starts as, what it is in an iteration and next, and what it is at the end.
    pub(crate) fn carries<'a>(&'a self, l: &StepLoop) -> impl Iterator<Item = [BufId; 4]> + use<'a> {
        let (begin, end) = (&self.steps[l.begin], &self.steps[l.end]);
        let before = begin.reads.iter().zip(&begin.writes);
        let after = end.reads.iter().zip(&end.writes);
        before.zip(after).map(|((start, current), (next, last))| [start.buf, current.buf, next.buf, last.buf])
    }
}

/// The use of each buffer.
fn kinds(plan: &Plan, held: &[Lifetime], paths: &Paths<'_>) -> Vec<MemoryKind> {
    let parameters = plan.program_inputs.iter().filter(|i| i.kind == ProgramInputKind::Param);
    let cotangents: SortedSet<String> = parameters.map(|i| format!("d({})", i.name)).collect();
    let sources = sources(plan);
    let mut kinds = vec![MemoryKind::Workspace; plan.buffers.len()];
    for step in &plan.steps {
        let copies = step.collective().is_some_and(|c| !c.kind().folds());
        for o in &step.writes {
            let gradient = paths.get(&o.buf).is_some_and(|path| cotangents.contains(*path));
            let of_parameters = sources[o.buf.0 as usize] == ValueOrigin::Parameters;
            let end = held[o.buf.0 as usize].end;
            // A value that nothing reads in another part of the step goes no further.
            let ends_later = plan.steps.get(end.max(1) - 1).is_some_and(|s| s.phase != Phase::Forward);
            kinds[o.buf.0 as usize] = match step.phase {
                // Of sums over parts of a batch the storage is there before the first.
                _ if gradient => MemoryKind::Gradients,
                Phase::Forward | Phase::Backward if of_parameters => MemoryKind::WorkingCopies,
                _ if copies => MemoryKind::Communication,
                Phase::Forward if ends_later && end < plan.steps.len() => MemoryKind::Residuals,
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

/// A carry is for the same in all iterations as what it is after the last, and what sums up gradients is for them from the first.
fn carried(plan: &Plan, kinds: &mut [MemoryKind]) {
    let carries: Vec<[BufId; 4]> = plan.loops().iter().flat_map(|l| plan.carries(l)).collect();
    loop {
        let mut changed = false;
        for all in &carries {
            let of = |b: &BufId| kinds[b.0 as usize];
            let sums = all.iter().any(|b| of(b) == MemoryKind::Gradients);
            let last = all.iter().rev().map(of).find(|k| *k != MemoryKind::Workspace);
            let known = if sums { Some(MemoryKind::Gradients) } else { last };
            let Some(known) = known else { continue };
            for b in all {
                let old = &mut kinds[b.0 as usize];
                if *old != known && (*old == MemoryKind::Workspace || sums && *old == MemoryKind::Residuals) {
                    (*old, changed) = (known, true);
                }
            }
        }
        // What a loop carries on may be what one around it carries on.
        if !changed {
            return;
        }
    }
}

/// Origin of a buffer's values, in ascending order of what prevails where several meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ValueOrigin {
    /// Nothing: constants, positions, storage that loops fill.
    Nothing,
    /// Parameters alone.
    Parameters,
    /// The data of a step, or states.
    Others,
}

/// The origin of each buffer. A carry is of what it starts as and of what it becomes, which depends on the carry: it is taken for
/// what it starts as until that is found to be too little.
fn sources(plan: &Plan) -> Vec<ValueOrigin> {
    let mut of = vec![ValueOrigin::Nothing; plan.buffers.len()];
    for input in &plan.program_inputs {
        let parameter = input.kind == ProgramInputKind::Param;
        of[input.buf.0 as usize] = if parameter { ValueOrigin::Parameters } else { ValueOrigin::Others };
    }
    let loops = plan.loops();
    loop {
        let before = of.clone();
        for step in &plan.steps {
            let read = |k: usize| step.reads.get(k).map_or(ValueOrigin::Nothing, |o| of[o.buf.0 as usize]);
            let all = (0..step.reads.len()).map(read).max().unwrap_or(ValueOrigin::Nothing);
            let each = |k: usize| if is_boundary(step) { read(k) } else { all };
            let made: Vec<ValueOrigin> = (0..step.writes.len()).map(each).collect();
            for (o, source) in step.writes.iter().zip(made) {
                let known = &mut of[o.buf.0 as usize];
                *known = source.max(*known);
            }
        }
        for [_, current, next, _] in loops.iter().flat_map(|l| plan.carries(l)) {
            of[current.0 as usize] = of[current.0 as usize].max(of[next.0 as usize]);
        }
        if of == before {
            return of;
        }
    }
}

/// Whether a step begins or ends a loop, so that each of its results is one of its operands.
fn is_boundary(step: &Step) -> bool {
    matches!(step.prim, Prim::Repeat { .. } | Prim::EndRepeat)
}

/// Bytes that a device holds during the step that holds most, by use; the sum of all uses is the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeakMemory {
    /// All of them.
    pub peak_bytes: u64,
    /// Parameters.
    pub parameter_bytes: u64,
    /// State of the optimizer.
    pub optimizer_state_bytes: u64,
    /// Values that the forward and the backward pass make of parameters alone, such as gathered shards.
    pub working_copy_bytes: u64,
    /// Gradients of parameters.
    pub gradient_bytes: u64,
    /// Values that the forward pass keeps for the backward pass.
    pub residual_bytes: u64,
    /// Copies of what others hold, other than parameters.
    pub communication_bytes: u64,
    /// All else, with the data of a step. Of runs of former versions it has what is neither a parameter nor state of the
    /// optimizer.
    #[serde(alias = "activation_bytes")]
    pub workspace_bytes: u64,
}

impl PeakMemory {
    /// The uses by name, in order, with their bytes.
    pub fn uses(&self) -> [(&'static str, u64); 7] {
        [
            ("parameters", self.parameter_bytes),
            ("optimizer state", self.optimizer_state_bytes),
            ("copies of parameters", self.working_copy_bytes),
            ("gradients", self.gradient_bytes),
            ("residuals", self.residual_bytes),
            ("communication", self.communication_bytes),
            ("workspace", self.workspace_bytes),
        ]
    }
}
