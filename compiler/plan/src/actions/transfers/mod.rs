//! The transfers between the passes of a pipeline: where each stands in the list of its rank, and whether lists end.
//!
//! A pass sends what it has made when it has made it. A pass that receives begins to receive while passes before it run: the next
//! one, with several stages on a rank the next two. So lists end even where a transfer blocks both of its ranks, the sender until
//! the receiver has begun to receive, and the receiver, where it reads, until the sender has sent. Where receives began right
//! before they are read, two neighbors would wait to send to each other, as a forward pass of one and a backward pass of the
//! other.

use super::{Pass, PassRun};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What a rank of a pipeline does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Begins to receive what a pass of this rank needs.
    Receive(PassRun),
    /// Waits for what a pass needs.
    Await(PassRun),
    /// Runs a pass.
    PassRun(PassRun),
    /// Sends what a pass of this rank made to the rank of the stage that needs it.
    Send(PassRun),
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

/// How many passes before the one that reads a message its receive begins, gradients of weights not counted: as few as lists end
/// with.
pub fn most_ahead(chunks: usize) -> usize {
    if chunks > 1 { 2 } else { 1 }
}

/// The actions of a rank: its passes, with a transfer wherever a stage of another rank needs a result or has one that is needed.
pub fn actions(list: &[PassRun], of: (usize, usize), chunks: usize) -> Vec<Action> {
    actions_with(list, of, chunks, most_ahead(chunks))
}

/// Actions whose receives begin `most_ahead` passes ahead.
fn actions_with(
    list: &[PassRun],
    (rank, ranks): (usize, usize),
    chunks: usize,
    most_ahead: usize,
) -> Vec<Action> {
    let last = (ranks * chunks).saturating_sub(1);
    let elsewhere = |stage: usize| stage % ranks != rank;
    let stage = |run: &PassRun| run.chunk * ranks + rank;
    let receives =
        |run: &PassRun| needed(run.pass, stage(run), last).is_some_and(|(_, from)| elsewhere(from));
    let sends = |run: &PassRun| needing(run.pass, stage(run), last).is_some_and(elsewhere);
    let mut made = vec![];
    // Passes that others may send to and whose receives have not begun.
    let mut ahead = list.iter().filter(|run| run.pass != Pass::W);
    let begin = |made: &mut Vec<Action>, next: Option<&PassRun>| {
        made.extend(next.filter(|run| receives(run)).map(|run| Action::Receive(*run)));
    };
    (0..most_ahead).for_each(|_| begin(&mut made, ahead.next()));
    for run in list {
        made.extend(receives(run).then_some(Action::Await(*run)));
        if run.pass != Pass::W {
            begin(&mut made, ahead.next());
        }
        made.push(Action::PassRun(*run));
        made.extend(sends(run).then_some(Action::Send(*run)));
    }
    made
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
    let mut done: SortedMap<StagePass, u64> = SortedMap::new();
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

/// Checks lists of actions: every pass of every microbatch occurs once, on its rank, after what it needs; each link carries its
/// messages in one order; and all lists end even if a send ends only when the receiver has begun to receive.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(lists: &[Vec<Action>], chunks: usize, microbatches: usize) -> Result<(), String> {
    let ranks = lists.len();
    let last = (ranks * chunks).checked_sub(1).ok_or("a pipeline without stages")?;
    let ran = |list: &[Action]| -> Vec<PassRun> {
        list.iter().filter_map(|a| if let Action::PassRun(r) = a { Some(*r) } else { None }).collect()
    };
    let passes = lists.iter().flat_map(|list| ran(list)).map(|run| run.pass as usize + 1).max().unwrap_or(1);
    for (rank, list) in lists.iter().enumerate() {
        let (all, ran) = (list.iter().collect::<SortedSet<&Action>>(), ran(list));
        let known = ran.iter().all(|r| r.micro < microbatches && r.chunk < chunks);
        if all.len() < list.len() || ran.len() != passes * chunks * microbatches || !known {
            return Err(format!("rank {rank} does not have each pass of each microbatch once"));
        }
    }
    let mut lists = Lists {
        lists,
        last,
        at: vec![0; ranks],
        ran: SortedSet::new(),
        came: SortedSet::new(),
        links: SortedMap::new(),
    };
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while lists.step(rank)? {
                moved = true;
            }
        }
        let left = (0..ranks).find_map(|rank| Some((rank, lists.lists[rank].get(lists.at[rank])?)));
        match left {
            None => {
                return lists
                    .links
                    .values()
                    .all(VecDeque::is_empty)
                    .then_some(())
                    .ok_or_else(|| "a message is not sent".into());
            }
            Some((rank, action)) if !moved => {
                return Err(format!("rank {rank} waits for ever at {action:?}"));
            }
            Some(_) => {}
        }
    }
}

/// Lists that run.
struct Lists<'l> {
    lists: &'l [Vec<Action>],
    /// The last stage.
    last: usize,
    /// How far each list has come.
    at: Vec<usize>,
    /// Passes that have run.
    ran: SortedSet<StagePass>,
    /// Passes of which another rank has what they sent.
    came: SortedSet<StagePass>,
    /// By sender and receiver, the passes whose messages the receiver has begun to receive, the oldest first.
    links: SortedMap<(usize, usize), VecDeque<StagePass>>,
}

impl Lists<'_> {
    /// Goes on with the list of a rank; false where that has to wait.
    fn step(&mut self, rank: usize) -> Result<bool, String> {
        let Some(action) = self.lists[rank].get(self.at[rank]) else { return Ok(false) };
        let ranks = self.lists.len();
        let stage = |run: &PassRun| run.chunk * ranks + rank;
        // The pass that sends what a pass of this rank receives.
        let sender = |run: &PassRun| {
            let (pass, from) = needed(run.pass, stage(run), self.last)?;
            Some((pass, from, run.micro))
        };
        match action {
            Action::Receive(run) => {
                let from = sender(run).ok_or_else(|| format!("nothing sends to {run:?}"))?;
                self.links.entry((from.1 % ranks, rank)).or_default().push_back(from);
            }
            Action::Await(run) => {
                if !sender(run).is_some_and(|from| self.came.contains(&from)) {
                    return Ok(false);
                }
            }
            Action::PassRun(run) => {
                self.may_run(rank, run, sender(run))?;
                self.ran.insert((run.pass, stage(run), run.micro));
            }
            Action::Send(run) => {
                let made = (run.pass, stage(run), run.micro);
                let to =
                    needing(run.pass, made.1, self.last).ok_or_else(|| format!("nothing needs {run:?}"))?;
                if !self.ran.contains(&made) {
                    return Err(format!("rank {rank} sends {run:?} before it has run"));
                }
                match self.links.entry((rank, to % ranks)).or_default().pop_front() {
                    None => return Ok(false),
                    Some(expected) if expected != made => {
                        return Err(format!(
                            "rank {} receives {expected:?} where rank {rank} sends {made:?}",
                            to % ranks
                        ));
                    }
                    Some(_) => self.came.insert(made),
                };
            }
        }
        self.at[rank] += 1;
        Ok(true)
    }

    /// Whether what a pass needs is there: the pass before it, and what another stage sends.
    fn may_run(&self, rank: usize, run: &PassRun, sent: Option<StagePass>) -> Result<(), String> {
        let ranks = self.lists.len();
        let own = match run.pass {
            Pass::F => None,
            Pass::B => Some(Pass::F),
            Pass::W => Some(Pass::B),
        };
        let before = |pass: &Pass| !self.ran.contains(&(*pass, run.chunk * ranks + rank, run.micro));
        if let Some(pass) = own.filter(before) {
            return Err(format!("rank {rank} runs {run:?} before its {pass:?}"));
        }
        let there = |from: &StagePass| {
            if from.1 % ranks == rank { self.ran.contains(from) } else { self.came.contains(from) }
        };
        match sent.filter(|from| !there(from)) {
            Some((pass, from, _)) => {
                Err(format!("rank {rank} runs {run:?} before it has received {pass:?} of stage {from}"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
