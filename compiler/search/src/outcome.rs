//! What a search gives.

use crate::compiled::CandidateRefusal;
use crate::memory::projected;
use crate::text::{Candidate, WrittenLayout};
use meshwright_cost::estimate::Estimate;
use meshwright_sorted::SortedMap;

/// Candidates whose times differ by less than this, relatively, are equal: the simplest is chosen.
pub const TIE: f64 = 0.005;

/// A candidate with its estimate.
#[derive(Clone, Debug)]
pub struct FoundLayout {
    /// The candidate.
    pub candidate: Candidate,
    /// Its text.
    pub written: WrittenLayout,
    /// Its estimate.
    pub estimate: Estimate,
}

/// Candidates that were looked at and refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Rules that do not go together.
    pub conflict: u64,
    /// A gather that no rule implies.
    pub gather: u64,
    /// Too large for the memory.
    pub memory: u64,
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct SearchOutcome {
    /// All estimated candidates that fit, the best first.
    pub found: Vec<FoundLayout>,
    /// No candidate that was not estimated is faster than this.
    pub bound: f64,
    /// Programs that were compiled.
    pub compiled: u64,
    /// Candidates that were estimated.
    pub estimated: u64,
    /// Rejected candidates that were looked at.
    pub rejected: Rejected,
    /// Sets that no layout may have, since alone over an axis they need a gather or do not go together, with the reason.
    pub refused: SortedMap<usize, CandidateRefusal>,
    /// The candidate that misses least, where one does not fit.
    pub nearest: Option<FoundLayout>,
}

/// Puts the best first: of those within [`TIE`] of the fastest one that compiles with its stages, then one that is no pipeline,
/// then the one with the fewest rules, then the least memory, then the first by its text.
pub(crate) fn choose(found: &mut [FoundLayout]) {
    let Some(least) = found.first().map(|f| f.estimate.seconds) else { return };
    let ties = found.partition_point(|f| f.estimate.seconds <= least * (1.0 + TIE));
    let key = |f: &FoundLayout| {
        let (pipe, lines) = (f.candidate.pipe.clone(), f.written.lines.len());
        let refused = projected(&f.estimate);
        (refused, pipe.is_some(), lines, f.estimate.memory.peak_bytes, f.written.clone(), pipe)
    };
    let best = (0..ties).min_by_key(|i| key(&found[*i])).unwrap_or(0);
    found[..=best].rotate_right(1);
}
