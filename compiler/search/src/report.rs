//! Result of a search, for people and programs.

use crate::best_first::{FoundLayout, SearchOutcome};
use crate::compiled::{CandidateRefusal, Subject};
use crate::space::Space;
use meshwright_cost::estimate::{Breakdown, Estimate};
use meshwright_sorted::SortedMap;
use serde::Serialize;

/// The report of a search.
#[derive(Clone, Debug, Serialize)]
pub struct SearchReport {
    /// The searched space.
    pub space: SpaceReport,
    /// Compiled programs, including illegal ones.
    pub compiled: u64,
    /// Candidates that were estimated.
    pub estimated: u64,
    /// Seconds that the search took.
    pub seconds: f64,
    /// Seconds of a step below which no candidate is; none where all were rejected.
    pub bound: Option<f64>,
    /// Distance of the best from the bound, relative to the bound: 0 if it is proven, but for simpler layouts, which win though
    /// they are that much slower. None where none was found.
    pub gap: Option<f64>,
    /// Whether no candidate is faster than the best, or equals it so nearly that the simpler one wins; where none was found,
    /// whether all were rejected.
    pub proven: bool,
    /// Candidates without an estimate, by reason.
    pub rejected: RejectedReport,
    /// The candidate that misses least, where none fits.
    pub nearest: Option<Nearest>,
    /// The best candidates.
    pub rows: Vec<SearchRow>,
    /// Candidates drawn from the whole space and timed, where that was asked for.
    pub sample: Option<SampleReport>,
}

/// Candidates drawn evenly from a space and timed along with the first of the best.
#[derive(Clone, Debug, Serialize)]
pub struct SampleReport {
    /// Candidates that were drawn.
    pub drawn: u64,
    /// Candidates that the compiler refused.
    pub refused: u64,
    /// Candidates that were timed.
    pub timed: u64,
    /// Kendall's tau-b of estimates and times.
    pub tau: Option<f64>,
    /// The one that took the least time.
    pub fastest: Option<SampledRow>,
}

/// A candidate of a sample.
#[derive(Clone, Debug, Serialize)]
pub struct SampledRow {
    /// Its rules.
    pub layout: String,
    /// Its mesh.
    pub mesh: String,
    /// Milliseconds of a step, estimated.
    pub estimated_ms: f64,
    /// Median milliseconds of measured steps.
    pub measured_ms: f64,
    /// That over the time of the first of the best in the same turns.
    pub ratio: f64,
}

/// The searched space.
#[derive(Clone, Debug, Serialize)]
pub struct SpaceReport {
    /// The most axes of a mesh.
    pub axes: usize,
    /// Splits of an axis: `heads, d_ff`, and `; seq when free` for a yielding dim.
    pub sets: Vec<String>,
    /// Splits that were left out since there are too many: those of the fewest dims.
    pub left_out: usize,
    /// Meshes, as sizes of their axes: `2x4`, or `8 stages of 2x4`.
    pub meshes: Vec<String>,
    /// Candidates.
    pub candidates: u64,
}

/// Candidates without an estimate, by reason.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RejectedReport {
    /// Rules that do not go together.
    pub conflict: u64,
    /// A gather that no rule implies.
    pub gather: u64,
    /// Too large for the memory.
    pub memory: u64,
    /// Slower than the best by their bounds. 0 where the search was stopped.
    pub bound: u64,
}

/// The candidate that misses least.
#[derive(Clone, Debug, Serialize)]
pub struct Nearest {
    /// Its rules.
    pub layout: String,
    /// Its mesh.
    pub mesh: String,
    /// Bytes that it needs.
    pub peak_bytes: u64,
    /// Bytes beyond the memory.
    pub missing_bytes: u64,
    /// A line of a layout, or a size, that would help.
    pub help: Option<String>,
}

/// The machine of an estimate.
#[derive(Clone, Debug, Serialize)]
pub struct MachineOfRow {
    /// The name by which it was asked for.
    pub name: String,
    /// Whether it was measured.
    pub calibrated: bool,
    /// By how much the estimate may be off, relatively.
    pub error: f64,
}

/// A candidate, with all that an estimate of its layout has.
#[derive(Clone, Debug, Serialize)]
pub struct SearchRow {
    /// Version of the format.
    pub version: u32,
    /// The model.
    pub model: String,
    /// The machine.
    pub machine: MachineOfRow,
    /// What executes the Plan.
    pub engine: String,
    /// From 1.
    pub rank: usize,
    /// Its rules.
    pub layout: String,
    /// Its mesh.
    pub mesh: String,
    /// Whether no other candidate is as fast with less memory.
    pub pareto: bool,
    /// Whether it can run: the compiler may refuse stages, whose times are those of a Plan without them.
    pub runnable: bool,
    /// Seconds by which it is slower than the best, by part; negative where it is faster.
    pub loses: SortedMap<String, f64>,
    /// The median of measured steps.
    pub measured_ms: Option<f64>,
    /// Its estimate.
    #[serde(flatten)]
    pub estimate: Estimate,
}

impl SearchReport {
    /// The report of an outcome on a machine of this name: the first `top` candidates, or those without an equally fast one of
    /// less memory.
    pub fn new(
        (space, subject, machine): (&Space, &Subject<'_>, &str),
        outcome: &SearchOutcome,
        (top, pareto): (usize, bool),
    ) -> SearchReport {
        let best = outcome.found.first().map(|f| f.estimate.seconds);
        // Ties are broken for simplicity, so the first need not be the fastest among its equals.
        let fastest = outcome.found.iter().map(|f| f.estimate.seconds).min_by(f64::total_cmp);
        let bound = Some(fastest.map_or(outcome.bound, |s| s.min(outcome.bound))).filter(|s| s.is_finite());
        let proven = fastest.map_or(outcome.bound.is_infinite(), |s| outcome.bound >= s);
        let gap = best.zip(bound).map(|(s, b)| s / b - 1.0);
        let front = front(&outcome.found);
        let shown = outcome.found.iter().zip(front).enumerate();
        // The best comes first, if it is not on the front itself.
        let shown = shown.filter(|(at, (_, on))| !pareto || *on || *at == 0).take(top);
        let about = |f: &FoundLayout| MachineOfRow {
            name: machine.to_string(),
            calibrated: subject.machine.calibration.is_some(),
            error: f.estimate.error,
        };
        let rows = shown.map(|(at, (f, on))| SearchRow {
            version: 1,
            model: subject.program.model.clone(),
            machine: about(f),
            engine: subject.engine.name().into(),
            rank: at + 1,
            layout: f.written.rules(),
            mesh: f.written.mesh.clone(),
            pareto: on,
            runnable: f.candidate.pipe.is_none() || subject.plan(&f.written, false).is_ok(),
            loses: loses(&f.estimate.breakdown, &outcome.found[0].estimate.breakdown),
            measured_ms: None,
            estimate: f.estimate.clone(),
        });
        let candidates = space.count();
        let nearest = outcome.nearest.as_ref().filter(|_| best.is_none()).map(|f| Nearest {
            layout: f.written.rules(),
            mesh: f.written.mesh.clone(),
            peak_bytes: f.estimate.memory.peak_bytes,
            missing_bytes: (f.estimate.memory.peak_bytes as f64 - subject.machine.device.memory).max(0.0)
                as u64,
            help: None,
        });
        SearchReport {
            space: SpaceReport {
                axes: space.meshes.iter().map(Vec::len).max().unwrap_or(0),
                sets: (0..space.sets.len())
                    .filter(|i| space.is_searched(*i))
                    .map(|i| space.set_text(i))
                    .collect(),
                left_out: space.left_out,
                meshes: space.meshes.iter().map(|m| sizes(space, m)).collect(),
                candidates,
            },
            compiled: outcome.compiled,
            estimated: outcome.estimated,
            seconds: 0.0,
            bound,
            gap,
            proven,
            rejected: rejected(space, outcome, candidates, proven),
            nearest,
            rows: rows.collect(),
            sample: None,
        }
    }
}

fn sizes(space: &Space, mesh: &[usize]) -> String {
    let sizes = mesh.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    match space.stages(mesh) {
        1 => sizes,
        stages => format!("{stages} stages of {}", if sizes.is_empty() { "1" } else { &sizes }),
    }
}

/// Candidates with a refused set were never looked at, but are rejected for the same reason.
fn rejected(space: &Space, outcome: &SearchOutcome, all: u64, proven: bool) -> RejectedReport {
    let without = |why: &[CandidateRefusal]| {
        let mut rest = space.clone();
        let refused = |i: &usize| outcome.refused.get(i).is_some_and(|w| why.contains(w));
        let kept = (0..space.sets.len()).filter(|i| !refused(i));
        rest.sets = kept.map(|i| space.sets[i].clone()).collect();
        rest.count()
    };
    let legal = without(&[CandidateRefusal::Gather, CandidateRefusal::Conflict]);
    let gather = all - without(&[CandidateRefusal::Gather]) + outcome.rejected.gather;
    let conflict = without(&[CandidateRefusal::Gather]) - legal + outcome.rejected.conflict;
    let memory = outcome.rejected.memory;
    let looked_at = gather + conflict + memory + outcome.found.len() as u64;
    let bound = if proven { all.saturating_sub(looked_at) } else { 0 };
    RejectedReport { conflict, gather, memory, bound }
}

fn loses(of: &Breakdown, best: &Breakdown) -> SortedMap<String, f64> {
    let all = of.parts().into_iter().zip(best.parts());
    let changed = all.map(|(a, b)| (a.0.to_string(), a.1 - b.1)).filter(|(_, s)| *s != 0.0);
    changed.collect()
}

/// Candidates with less memory than all before them, in the order of their times.
fn front(found: &[FoundLayout]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    let peak = |i: usize| found[i].estimate.memory.peak_bytes;
    order.sort_by(|a, b| {
        found[*a].estimate.seconds.total_cmp(&found[*b].estimate.seconds).then(peak(*a).cmp(&peak(*b)))
    });
    let (mut out, mut least) = (vec![false; found.len()], u64::MAX);
    for i in order {
        out[i] = peak(i) < least;
        least = least.min(peak(i));
    }
    out
}
