//! What the memory of a device is for, over the steps of a Plan, and whether it is enough.

use crate::machine::Machine;
use meshwright_plan::{BufId, Phase, Plan, Prim, ProgramInputKind, StepLoop};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// Uses of memory, from what stays longest to what goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Parameters.
    Parameters,
    /// State of the optimizer.
    OptimizerState,
    /// Gradients.
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
    pub const ALL: [MemoryKind; 7] = [
        MemoryKind::Parameters,
        MemoryKind::OptimizerState,
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
    /// The first step during which it is not: after its last use, or where a result takes its storage. Of a buffer that nothing writes, 0.
    pub end: usize,
}

/// The path of each buffer that has one.
pub type Paths<'a> = BTreeMap<BufId, &'a str>;

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
    let blanks: BTreeSet<BufId> = blanks.flat_map(|s| &s.writes).map(|o| o.buf).collect();
    for l in plan.loops() {
        for [start, current, next, last] in carries(plan, &l) {
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

/// The lifetime and the use of each buffer of a Plan. A gradient is what `is_gradient` says of the number of a value, or the cotangent of a
/// parameter.
pub fn residency(plan: &Plan, paths: &Paths<'_>, is_gradient: impl Fn(u32) -> bool) -> Vec<Residency> {
    let lifetimes = lifetimes(plan);
    let kinds = kinds(plan, &lifetimes, paths, is_gradient);
    // A buffer that nothing writes takes no memory: it is there for its place alone.
    let row = |(l, kind): (&Option<(usize, usize)>, MemoryKind)| {
        let (begin, end) = l.unwrap_or((0, 0));
        Residency { kind, begin, end }
    };
    lifetimes.iter().zip(kinds).map(row).collect()
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

/// Carries of a loop: what each starts as, what it is in an iteration and next, and what it is at the end.
fn carries<'a>(plan: &'a Plan, l: &StepLoop) -> impl Iterator<Item = [BufId; 4]> + use<'a> {
    let (begin, end) = (&plan.steps[l.begin], &plan.steps[l.end]);
    let before = begin.reads.iter().zip(&begin.writes);
    let after = end.reads.iter().zip(&end.writes);
    before.zip(after).map(|((start, current), (next, last))| [start.buf, current.buf, next.buf, last.buf])
}

/// The use of each buffer.
fn kinds(
    plan: &Plan,
    held: &[Option<(usize, usize)>],
    paths: &Paths<'_>,
    is_gradient: impl Fn(u32) -> bool,
) -> Vec<MemoryKind> {
    let parameters = plan.program_inputs.iter().filter(|i| i.kind == ProgramInputKind::Param);
    let cotangents: BTreeSet<String> = parameters.map(|i| format!("d({})", i.name)).collect();
    let mut kinds = vec![MemoryKind::Workspace; plan.buffers.len()];
    for step in &plan.steps {
        let copies = step.collective().is_some_and(|c| !c.kind().folds());
        for (k, o) in step.writes.iter().enumerate() {
            let from = step.origin.get(k).or(step.origin.first());
            let gradient = from.is_some_and(|f| is_gradient(f.id))
                || paths.get(&o.buf).is_some_and(|path| cotangents.contains(*path));
            let end = held[o.buf.0 as usize].map_or(0, |h| h.1);
            // A value that nothing reads in another part of the step goes no further.
            let ends_later = plan.steps.get(end.max(1) - 1).is_some_and(|s| s.phase != Phase::Forward);
            kinds[o.buf.0 as usize] = match step.phase {
                Phase::Backward | Phase::Update if gradient => MemoryKind::Gradients,
                _ if copies => MemoryKind::Communication,
                Phase::Forward if ends_later && end < plan.steps.len() => MemoryKind::Residuals,
                _ => MemoryKind::Workspace,
            };
        }
    }
    // A carry is for the same in all iterations as what it is after the last.
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

/// Bytes by kind during the step that holds most, the first of several, without the buffers that a device never makes. Their sum is the
/// Plan's [`Plan::peak_without`].
pub fn at_peak(plan: &Plan, held: &[Residency], absent: &BTreeSet<BufId>) -> ByKind {
    let bytes = |i: usize| plan.buffer(BufId(i as u32)).largest_bytes(&plan.mesh) as u64;
    let there = || held.iter().enumerate().filter(|(i, _)| !absent.contains(&BufId(*i as u32)));
    // What comes and goes with each step.
    let (mut comes, mut goes) = (vec![0u64; plan.steps.len() + 1], vec![0u64; plan.steps.len() + 1]);
    for (i, h) in there().filter(|(_, h)| h.begin < h.end) {
        comes[h.begin] += bytes(i);
        goes[h.end] += bytes(i);
    }
    let (mut live, mut most, mut peak) = (0, 0, 0);
    for step in 0..plan.steps.len() {
        live = live + comes[step] - goes[step];
        if live > most {
            (most, peak) = (live, step);
        }
    }
    let mut sums = ByKind::default();
    there()
        .filter(|(_, h)| (h.begin..h.end).contains(&peak))
        .for_each(|(i, h)| sums[h.kind as usize] += bytes(i));
    sums
}

/// The part of the memory above which a step is tight: allocators may have to try again, which takes time.
const TIGHT: f64 = 0.8;

/// A verdict: the buffers of a Plan fit, or not, into the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// Yes.
    Yes,
    /// Yes, but more than four fifths are taken.
    Tight {
        /// Bytes that are left.
        free: u64,
    },
    /// No: the Plan's buffers alone are larger than the memory.
    No {
        /// Bytes that are missing.
        missing: u64,
    },
}

impl Fits {
    /// Whether a Plan with this peak fits. What a device reserves makes it tight, but only the memory itself is a limit: what others run
    /// at its edge is not refused.
    pub fn of(peak: u64, machine: &Machine) -> Fits {
        let (memory, usable) = (machine.device.memory as u64, machine.usable());
        match peak {
            _ if peak > memory => Fits::No { missing: peak - memory },
            _ if peak as f64 > TIGHT * usable => Fits::Tight { free: memory - peak },
            _ => Fits::Yes,
        }
    }

    /// `yes`, `tight` or `no`.
    pub fn name(self) -> &'static str {
        match self {
            Fits::Yes => "yes",
            Fits::Tight { .. } => "tight",
            Fits::No { .. } => "no",
        }
    }
}

/// As its name.
impl Serialize for Fits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_the_memory_does_not_fit() {
        let machine = Machine::read(crate::shipped::find("dgx-h100").unwrap()).unwrap();
        let fits = |bytes: u64| Fits::of(bytes, &machine);
        assert_eq!((fits(0), fits(65_600_000_000)), (Fits::Yes, Fits::Yes));
        assert_eq!(fits(65_600_000_001), Fits::Tight { free: 19_399_999_999 });
        // The reserve of 3 GB is for estimates: it refuses nothing.
        assert_eq!(fits(85_000_000_000), Fits::Tight { free: 0 });
        assert_eq!((fits(85_000_000_001), fits(85_000_000_001).name()), (Fits::No { missing: 1 }, "no"));
    }
}
