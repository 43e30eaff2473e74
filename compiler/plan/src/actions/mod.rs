//! Schedules of pipelines as data: the passes of each rank in order.

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod simulated;
mod transfers;

pub use transfers::{Action, actions, makespan, most_ahead, spans, verify};

use serde::{Deserialize, Serialize};

/// The order in which microbatches pass the stages of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes (Huang et al. 2019).
    Gpipe,
    /// One forward, one backward (Narayanan et al. 2019, 2021 with chunks).
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with gradients of weights apart, which fill the bubble (ZB-H1, Qi et al. 2023).
    ZbH1,
}

impl PipelineSchedule {
    /// All schedules.
    pub const ALL: [PipelineSchedule; 3] =
        [PipelineSchedule::Gpipe, PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1];

    /// Its name in layouts and options.
    pub fn name(self) -> &'static str {
        match self {
            PipelineSchedule::Gpipe => "gpipe",
            PipelineSchedule::OneForwardOneBackward => "1f1b",
            PipelineSchedule::ZbH1 => "zb_h1",
        }
    }

    /// The schedule of that name.
    pub fn named(name: &str) -> Option<PipelineSchedule> {
        PipelineSchedule::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// A pass of a microbatch through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Pass {
    /// Forward.
    F,
    /// Backward; without gradients of weights where these are apart.
    B,
    /// Gradients of weights.
    W,
}

/// A pass that a rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PassRun {
    /// Which pass.
    pub pass: Pass,
    /// The microbatch.
    pub micro: usize,
    /// One of the rank's stages: chunk `c` of rank `r` among `p` is stage `c p + r`.
    pub chunk: usize,
}

/// The passes of each of `ranks`, each with `chunks` stages, in order. Every pass of every microbatch occurs once.
///
/// # Errors
/// Without ranks, chunks or microbatches, or if GPipe has chunks.
pub fn runs(
    schedule: PipelineSchedule,
    ranks: usize,
    chunks: usize,
    microbatches: usize,
) -> Result<Vec<Vec<PassRun>>, String> {
    if ranks == 0 || chunks == 0 || microbatches == 0 {
        return Err("a pipeline needs a stage, a chunk and a microbatch".into());
    }
    if schedule == PipelineSchedule::Gpipe && chunks > 1 {
        return Err("`gpipe` has no chunks: use `1f1b`".into());
    }
    let of = |rank| match schedule {
        PipelineSchedule::Gpipe => {
            let all = |pass| (0..microbatches).map(move |micro| PassRun { pass, micro, chunk: 0 });
            all(Pass::F).chain(all(Pass::B)).collect()
        }
        PipelineSchedule::OneForwardOneBackward => alternating(rank, ranks, chunks, microbatches),
        PipelineSchedule::ZbH1 => with_weights(alternating(rank, ranks, chunks, microbatches), rank),
    };
    Ok((0..ranks).map(of).collect())
}

/// Some forward passes, then forward and backward passes in turns, then backward passes. With chunks, microbatches go through
/// them in groups of as many as there are ranks. Where these do not divide the microbatches, passes of microbatches that are
/// missing in the last group are left out.
fn alternating(rank: usize, ranks: usize, chunks: usize, microbatches: usize) -> Vec<PassRun> {
    let groups = if chunks == 1 { microbatches } else { microbatches.next_multiple_of(ranks) };
    let all = groups * chunks;
    let nth = |k: usize, pass: Pass| {
        if chunks == 1 {
            return PassRun { pass, micro: k, chunk: 0 };
        }
        let (group, at) = (k / (ranks * chunks), k % (ranks * chunks));
        let chunk = at / ranks;
        let chunk = if pass == Pass::F { chunk } else { chunks - 1 - chunk };
        PassRun { pass, micro: group * ranks + at % ranks, chunk }
    };
    let first = match chunks {
        1 => ranks - rank - 1,
        _ => 2 * (ranks - rank - 1) + (chunks - 1) * ranks,
    };
    let first = first.min(all);
    let mut list: Vec<PassRun> = (0..first).map(|k| nth(k, Pass::F)).collect();
    for k in 0..all - first {
        list.extend([nth(first + k, Pass::F), nth(k, Pass::B)]);
    }
    list.extend((all - first..all).map(|k| nth(k, Pass::B)));
    list.retain(|run| run.micro < microbatches);
    list
}

/// Puts the gradients of weights behind the backward passes, as many later as the rank counts: the first rank, which waits least,
/// at once.
fn with_weights(list: Vec<PassRun>, rank: usize) -> Vec<PassRun> {
    let (mut made, mut waiting) = (vec![], std::collections::VecDeque::new());
    for run in list {
        made.push(run);
        if run.pass == Pass::B {
            waiting.push_back(PassRun { pass: Pass::W, ..run });
            if waiting.len() > rank {
                made.extend(waiting.pop_front());
            }
        }
    }
    made.extend(waiting);
    made
}

/// The most microbatches, counted once for each chunk, that a rank keeps residuals of: from the forward pass to the last pass
/// that reads them.
pub fn in_flight(list: &[PassRun]) -> usize {
    let last = list.iter().map(|run| run.pass).max();
    let each = vec![1; list.iter().map(|run| run.chunk + 1).max().unwrap_or(0)];
    last.map_or(0, |last| most_kept(list, (Pass::F, last), &each) as usize)
}

/// The most that a rank holds at once of what one pass makes and another one reads last. `of_chunk` is what a microbatch has of
/// it in each chunk.
pub fn most_kept(list: &[PassRun], (from, until): (Pass, Pass), of_chunk: &[u64]) -> u64 {
    let (mut now, mut most) = (0u64, 0);
    for run in list {
        let own = of_chunk.get(run.chunk).copied().unwrap_or(0);
        now += if run.pass == from { own } else { 0 };
        most = most.max(now);
        now = now.saturating_sub(if run.pass == until { own } else { 0 });
    }
    most
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_sorted::SortedSet;

    #[test]
    fn every_pass_runs_once() {
        for (p, v, m) in [(1, 1, 1), (4, 1, 8), (4, 1, 2), (4, 3, 8), (16, 6, 376), (3, 2, 5)] {
            for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1] {
                for list in runs(schedule, p, v, m).unwrap() {
                    let passes = if schedule == PipelineSchedule::ZbH1 { 3 } else { 2 };
                    assert_eq!(list.len(), passes * v * m);
                    assert_eq!(list.iter().collect::<SortedSet<_>>().len(), list.len());
                }
            }
        }
    }

    #[test]
    fn one_forward_one_backward() {
        let list = &runs(PipelineSchedule::OneForwardOneBackward, 3, 1, 3).unwrap()[1];
        let text: String = list.iter().map(|r| format!("{:?}{} ", r.pass, r.micro)).collect();
        assert_eq!(text, "F0 F1 B0 F2 B1 B2 ");
        assert!(runs(PipelineSchedule::Gpipe, 2, 2, 4).is_err());
    }
}
