//! Memory of candidates: what each holds at least, and candidates that are dropped for it without being compiled.

use crate::bound::held;
use crate::compiled::Subject;
use crate::space::Space;
use crate::text::Candidate;
use crate::work::ModelWork;
use meshwright_cost::estimate::{Estimate, Fits};
use meshwright_sorted::SortedMap;

/// Number of dropped candidates that are remembered: the ones that hold the fewest bytes.
const LEAST: usize = 4;

/// A mesh, the sets of its axes, and what is recomputed: candidates that differ in none of these keep the same for the backward
/// pass.
type AlikeKept = (Vec<usize>, Vec<usize>, usize);

/// Bytes that a candidate keeps for the backward pass.
#[derive(Clone, Copy, Debug)]
struct KeptBytes {
    /// Of all parts of the batch.
    bytes: f64,
    /// Their number.
    parts: usize,
}

/// What is known of the memory of candidates.
#[derive(Default)]
pub(crate) struct KnownMemory {
    kept: SortedMap<AlikeKept, KeptBytes>,
    /// Dropped candidates with the bytes that they hold, ascending.
    least: Vec<(f64, Candidate)>,
}

impl KnownMemory {
    /// Notes what candidates like one keep, by its estimates: one for each pipeline, if there are any.
    pub(crate) fn keeps(&mut self, space: &Space, c: &Candidate, estimates: &[Estimate]) {
        let parts = space.parts[c.parts];
        // The workspace of a stage is projected, and comes on top.
        let beside = |e: &Estimate| if projected(e) { e.memory.workspace } else { 0 };
        let least = estimates.iter().map(|e| e.memory.residuals + beside(e)).min().unwrap_or(0);
        let found = KeptBytes { bytes: (least * parts as u64) as f64, parts };
        let known = self.kept.entry((c.mesh.clone(), c.sets.clone(), c.recompute)).or_insert(found);
        if found.bytes > known.bytes {
            *known = found;
        }
    }

    /// The bytes that a candidate, or each with the rules of a base, holds at least, where that is more than there is: parameters
    /// and optimizer state, and of a candidate what others that keep the same for the backward pass were seen to keep, shared out
    /// among its parts of the batch. The stages of a pipeline keep more parts where there are more, up to their number, so of
    /// theirs only those with fewer parts tell.
    pub(crate) fn too_much(
        &self,
        (space, work, subject): (&Space, &ModelWork, &Subject<'_>),
        c: &Candidate,
        base: bool,
    ) -> Option<f64> {
        let most = if base { space.most(&c.sets) } else { c.stored.clone() };
        let axes = space.shares(&c.mesh, &c.sets, &most);
        let (stages, parts) = (space.stages(&c.mesh), space.parts[c.parts]);
        let key = (c.mesh.clone(), c.sets.clone(), c.recompute);
        let known = self.kept.get(&key).filter(|k| !base && (stages == 1 || k.parts <= parts));
        let kept = known.map_or(0.0, |k| k.bytes / parts as f64);
        let bytes = held(work, &axes, !base && parts > 1) / stages as f64 + kept;
        (bytes > subject.machine.device.memory).then_some(bytes)
    }

    /// Remembers a candidate that is dropped, or of all with the rules of a base one that takes little memory.
    pub(crate) fn drop(&mut self, space: &Space, bytes: f64, c: &Candidate, base: bool) {
        let frugal = || {
            let parts = space.parts_of(&c.mesh, &c.sets).end - 1;
            let stored = space.stored(&c.sets, space.parts[parts]).pop()?;
            Some(Candidate { stored, parts, recompute: space.recompute.len() - 1, ..c.clone() })
        };
        let Some(dropped) = (if base { frugal() } else { Some(c.clone()) }) else { return };
        let at = self.least.partition_point(|(b, _)| *b <= bytes);
        self.least.insert(at, (bytes, dropped));
        self.least.truncate(LEAST);
    }

    /// The dropped candidates that hold least.
    pub(crate) fn least(&self) -> impl Iterator<Item = &Candidate> {
        self.least.iter().map(|(_, c)| c)
    }
}

/// Whether an estimate fits. Memory of a stage that is projected is all there is to choose by.
pub(crate) fn fits(estimate: &Estimate, memory: f64) -> bool {
    match projected(estimate) {
        true => estimate.memory.device_bytes as f64 <= memory,
        false => !matches!(estimate.memory.fits, Fits::No { .. }),
    }
}

/// True for an estimate of a Plan without the stages that it is about.
pub(crate) fn projected(of: &Estimate) -> bool {
    of.pipe.as_ref().is_some_and(|p| p.projected)
}
