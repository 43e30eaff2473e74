//! The transfers between the passes of a pipeline: where each stands in the lists of its two ranks, and whether lists end.
//!
//! A transfer is one event: at the end, in an ideal run, of the pass that makes what is sent. All passes and transfers sorted by their time
//! are one total order, and the list of a rank is a part of it. So lists end whatever passes take, and even where a transfer blocks both of
//! its ranks: the earliest event that is left can always happen.

use super::{Pass, PassRun, PipelineSchedule, runs};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a rank of a pipeline does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Runs a pass.
    PassRun(PassRun),
    /// Sends what a pass of this rank made to the rank of the stage that needs it.
    Send(PassRun),
    /// Receives what a pass of this rank needs.
    Receive(PassRun),
}

/// A pass of a stage with a microbatch.
type StagePass = (Pass, usize, usize);

/// The pass whose result a pass needs of another stage.
fn needed(pass: Pass, stage: usize, last: usize) -> Option<(Pass, usize)> {
    match pass {
        Pass::F => stage.checked_sub(1).map(|before| (Pass::F, before)),
        Pass::B if stage < last => Some((Pass::B, stage + 1)),
        Pass::B | Pass::W => None,
    }
}

/// The stage that needs the result of a pass, if there is one.
fn needing(pass: Pass, stage: usize, last: usize) -> Option<usize> {
    match pass {
        Pass::F if stage < last => Some(stage + 1),
        Pass::B => stage.checked_sub(1),
        Pass::F | Pass::W => None,
    }
}

/// An action at a time. Transfers come before what begins at the same time; of several, in the order of what makes them.
type Timed = ((u64, bool, StagePass), Action);

/// The actions of each rank: its passes, with a transfer wherever a stage of another rank needs a result.
///
/// # Errors
/// Those of [`runs`].
pub fn actions(
    schedule: PipelineSchedule,
    ranks: usize,
    chunks: usize,
    microbatches: usize,
) -> Result<Vec<Vec<Action>>, String> {
    let lists = runs(schedule, ranks, chunks, microbatches)?;
    let spans = spans(&lists, chunks, &|_, _| 1)?;
    let last = ranks * chunks - 1;
    let mut timed: Vec<Vec<Timed>> = vec![Vec::new(); ranks];
    for (rank, (list, spans)) in lists.iter().zip(&spans).enumerate() {
        for (run, (start, end)) in list.iter().zip(spans) {
            let stage = run.chunk * ranks + rank;
            let event = (run.pass, stage, run.micro);
            timed[rank].push(((*start, true, event), Action::PassRun(*run)));
            let Some(to) = needing(run.pass, stage, last).filter(|to| to % ranks != rank) else { continue };
            let received = PassRun { chunk: to / ranks, ..*run };
            timed[rank].push(((*end, false, event), Action::Send(*run)));
            timed[to % ranks].push(((*end, false, event), Action::Receive(received)));
        }
    }
    Ok(timed
        .into_iter()
        .map(|mut list| {
            list.sort_unstable();
            list.into_iter().map(|(_, action)| action).collect()
        })
        .collect())
}

/// The time until the last pass ends where transfers take no time. `cost` is that of a pass on a rank.
///
/// # Errors
/// Where lists wait for each other.
pub fn makespan(
    lists: &[Vec<PassRun>],
    chunks: usize,
    cost: &dyn Fn(usize, Pass) -> u64,
) -> Result<u64, String> {
    let spans = spans(lists, chunks, cost)?;
    Ok(spans.iter().filter_map(|s| s.last()).map(|s| s.1).max().unwrap_or(0))
}

/// Start and end of each pass where transfers take no time. `cost` is that of a pass on a rank.
///
/// # Errors
/// Where lists wait for each other.
pub fn spans(
    lists: &[Vec<PassRun>],
    chunks: usize,
    cost: &dyn Fn(usize, Pass) -> u64,
) -> Result<Vec<Vec<(u64, u64)>>, String> {
    let ranks = lists.len();
    let last = ranks * chunks - 1;
    let mut done: BTreeMap<StagePass, u64> = BTreeMap::new();
    let mut spans: Vec<Vec<(u64, u64)>> = vec![Vec::new(); ranks];
    loop {
        let mut moved = false;
        for (rank, list) in lists.iter().enumerate() {
            while let Some(run) = list.get(spans[rank].len()) {
                let stage = run.chunk * ranks + rank;
                let other = needed(run.pass, stage, last).map(|(pass, stage)| (pass, stage, run.micro));
                let arrival = match other {
                    Some(event) => done.get(&event).copied(),
                    None => Some(0),
                };
                let Some(arrival) = arrival else { break };
                let start = arrival.max(spans[rank].last().map_or(0, |s| s.1));
                let end = start + cost(rank, run.pass);
                spans[rank].push((start, end));
                done.insert((run.pass, stage, run.micro), end);
                moved = true;
            }
        }
        match lists.iter().zip(&spans).position(|(list, spans)| spans.len() < list.len()) {
            None => return Ok(spans),
            Some(rank) if !moved => {
                return Err(format!("rank {rank} waits for ever at {:?}", lists[rank][spans[rank].len()]));
            }
            Some(_) => {}
        }
    }
}

/// Checks lists of actions: every pass of every microbatch occurs once, on its rank, after what it needs; and all lists end even if a
/// transfer begins only when both of its ranks have come to it. Then each link carries its transfers in one order.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(lists: &[Vec<Action>], chunks: usize, microbatches: usize) -> Result<(), String> {
    let ranks = lists.len();
    let last = (ranks * chunks).checked_sub(1).ok_or("a pipeline without stages")?;
    for (rank, list) in lists.iter().enumerate() {
        let all: BTreeSet<&Action> = list.iter().collect();
        let ran: Vec<&PassRun> =
            list.iter().filter_map(|a| if let Action::PassRun(r) = a { Some(r) } else { None }).collect();
        let passes = if ran.iter().any(|r| r.pass == Pass::W) { 3 } else { 2 };
        let known = ran.iter().all(|r| r.micro < microbatches && r.chunk < chunks);
        if all.len() < list.len() || ran.len() != passes * chunks * microbatches || !known {
            return Err(format!("rank {rank} does not have each pass of each microbatch once"));
        }
    }
    let mut at = vec![0; ranks];
    // Passes that have run, and results that have come to the rank that needs them, by the event that made them.
    let (mut ran, mut came) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while let Some(action) = lists[rank].get(at[rank]) {
                match action {
                    Action::PassRun(run) => {
                        may_run(run, rank, ranks, last, &ran, &came)?;
                        ran.insert((run.pass, run.chunk * ranks + rank, run.micro));
                    }
                    Action::Send(run) => {
                        let event = (run.pass, run.chunk * ranks + rank, run.micro);
                        let to = needing(run.pass, event.1, last)
                            .ok_or_else(|| format!("nothing needs {run:?}"))?;
                        if !ran.contains(&event) {
                            return Err(format!("rank {rank} sends {run:?} before it has run"));
                        }
                        let receive = Action::Receive(PassRun { chunk: to / ranks, ..*run });
                        if lists[to % ranks].get(at[to % ranks]) != Some(&receive) {
                            break;
                        }
                        at[to % ranks] += 1;
                        came.insert(event);
                    }
                    // The sender goes on for both.
                    Action::Receive(_) => break,
                }
                at[rank] += 1;
                moved = true;
            }
        }
        match (0..ranks).find(|r| at[*r] < lists[*r].len()) {
            None => return Ok(()),
            Some(rank) if !moved => {
                return Err(format!("rank {rank} waits for ever at {:?}", lists[rank][at[rank]]));
            }
            Some(_) => {}
        }
    }
}

/// Whether what a pass needs is there.
fn may_run(
    run: &PassRun,
    rank: usize,
    ranks: usize,
    last: usize,
    ran: &BTreeSet<StagePass>,
    came: &BTreeSet<StagePass>,
) -> Result<(), String> {
    let stage = run.chunk * ranks + rank;
    let own = match run.pass {
        Pass::F => None,
        Pass::B => Some(Pass::F),
        Pass::W => Some(Pass::B),
    };
    if let Some(pass) = own.filter(|pass| !ran.contains(&(*pass, stage, run.micro))) {
        return Err(format!("rank {rank} runs {run:?} before its {pass:?}"));
    }
    let Some((pass, from)) = needed(run.pass, stage, last) else { return Ok(()) };
    let event = (pass, from, run.micro);
    let there = if from % ranks == rank { ran.contains(&event) } else { came.contains(&event) };
    if there {
        Ok(())
    } else {
        Err(format!("rank {rank} runs {run:?} before it has received {pass:?} of stage {from}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
