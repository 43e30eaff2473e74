//! Waiting for a collective, and the errors of a wait that does not end.

use crate::engine::{Engine, Serial};
use crate::message::{CollectiveId, Message, Status};
use crate::shared_engine::SharedEngine;
use crate::timing::{ANSWER, LAST_ANSWER};
use meshwright_comm::parts::blocking;
use meshwright_comm::{AsyncCollective, CommError, Missing};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Time for which a waiting device polls the library without pause, and time for which it then yields its core between
/// polls, before it sleeps between them.
const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);

/// A rank's hold on a collective.
pub(super) struct Pending {
    shared: Arc<SharedEngine>,
    serial: Serial,
    timeout: Duration,
    result: Option<Result<(), CommError>>,
}

impl Pending {
    pub(super) fn new(shared: Arc<SharedEngine>, serial: Serial, timeout: Duration) -> Pending {
        Pending { shared, serial, timeout, result: None }
    }
}

impl AsyncCollective for Pending {
    fn wait(&mut self) -> Result<(), CommError> {
        if self.result.is_none() {
            self.result = Some(wait(&self.shared, self.serial, self.timeout));
        }
        self.result.clone().unwrap_or(Ok(()))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.result.is_some() {
            return;
        }
        {
            let mut engine = self.shared.engine();
            if std::thread::panicking() {
                let rank = self.shared.rank;
                engine.abort(rank, "its thread panicked");
            } else {
                let _noted = engine.cancel(self.serial);
            }
        }
        // The end, or the end of all calls of the library: either way no memory is touched from here on.
        let _ended = wait(&self.shared, self.serial, self.timeout);
    }
}

/// Pauses that grow.
struct Pace {
    since: Instant,
    round: u32,
}

impl Pace {
    fn new() -> Pace {
        Pace { since: Instant::now(), round: 0 }
    }

    /// Whether this is a round for all that can be done, and not only for what is waited for.
    fn is_thorough(&self) -> bool {
        self.round.is_multiple_of(8)
    }

    fn pause(&mut self) {
        self.round = self.round.wrapping_add(1);
        match self.since.elapsed() {
            waited if waited < SPIN => std::hint::spin_loop(),
            waited if waited < YIELD => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
    }
}

fn wait(shared: &SharedEngine, serial: Serial, timeout: Duration) -> Result<(), CommError> {
    let mut pace = Pace::new();
    loop {
        let mut engine = shared.engine();
        let moved = if pace.is_thorough() { engine.step(Some(shared)) } else { engine.advance(serial) };
        if let Some(result) = ended(&engine, serial).or(moved.err().map(Err)) {
            return release(shared, engine, serial, result);
        }
        if pace.round == 0 {
            engine.waits = engine.op(serial).map(|op| op.key().clone());
        }
        drop(engine);
        if pace.since.elapsed() >= timeout || shared.interrupted() {
            let result = question(shared, serial, pace.since);
            return release(shared, shared.engine(), serial, result);
        }
        pace.pause();
    }
}

/// Result of a collective, if it has ended or cannot end.
fn ended(engine: &Engine, serial: Serial) -> Option<Result<(), CommError>> {
    let Some(op) = engine.op(serial) else { return Some(Ok(())) };
    if let Some(result) = op.result() {
        return Some(result.clone());
    }
    if let Some(error) = &op.hopeless {
        return Some(Err(error.clone()));
    }
    if let Err(e) = engine.check_alive(&op.name) {
        return Some(Err(e));
    }
    if engine.stopped {
        let (rank, reason) = (engine.rank, "its transport was closed".into());
        return Some(Err(CommError::Aborted { rank, reason, call: Some(op.name.clone()) }));
    }
    None
}

/// Ends the hold on a collective, whose memory is touched no more from here on.
pub(super) fn release(
    shared: &SharedEngine,
    mut engine: MutexGuard<'_, Engine>,
    serial: Serial,
    result: Result<(), CommError>,
) -> Result<(), CommError> {
    if let Err(e) = &result {
        let lent = engine.op(serial).is_some_and(|op| op.is_running());
        if lent {
            // The library cannot release the memory, but does nothing without being called.
            engine.abort(shared.rank, &e.to_string());
            shared.flush(&mut engine);
            engine.stopped = true;
        }
    } else {
        engine.waits = None;
    }
    engine.remove(serial);
    result
}

/// Asks all others where they are, and gives the collective up, unless it ends meanwhile.
fn question(shared: &SharedEngine, serial: Serial, since: Instant) -> Result<(), CommError> {
    let told = shared.interrupted();
    let result = ask(shared, if told { LAST_ANSWER } else { ANSWER }, |engine| ended(engine, serial));
    let world = match result {
        Ok(world) => world,
        Err(ended) => return ended,
    };
    let mut engine = shared.engine();
    let Some(op) = engine.op(serial) else { return Ok(()) };
    let (call, key) = (op.name.clone(), op.key().clone());
    let missing = world.named(&world.absent(&key));
    let (rank, waited) = (shared.rank, since.elapsed());
    let error = if told {
        CommError::Terminated { rank, call, missing }
    } else {
        CommError::Timeout { rank, call, waited, stuck: world.blocking(&key), missing }
    };
    engine.abort(rank, &error.to_string());
    shared.flush(&mut engine);
    Err(error)
}

/// Asks all others for their position, until all have answered, or the time is over, or `until` finds an error. Several
/// threads may ask at a time. If this rank itself waits for a communicator, the members of that which have not answered
/// are missing.
pub(super) fn ask<T>(
    shared: &SharedEngine,
    most: Duration,
    until: impl Fn(&Engine) -> Option<T>,
) -> Result<World, T> {
    let mut asked = None;
    loop {
        let mut engine = match shared.engine_unless_making(most) {
            Ok(engine) => engine,
            Err(members) => return Ok(World::without(&members, shared)),
        };
        // Time counts from the question, and not while this process is in a long copy itself.
        let since = *asked.get_or_insert_with(|| {
            let now = Instant::now();
            engine.tell_all(&Message::Ask);
            now
        });
        // An error is noted in the engine, where `until` may find it.
        let _noted = engine.step(None);
        if let Some(found) = until(&engine) {
            return Err(found);
        }
        let world = World::since(since, &engine);
        if world.unresponsive().is_empty() || since.elapsed() >= most || engine.stopped {
            return Ok(world);
        }
        drop(engine);
        std::thread::sleep(NAP);
    }
}

/// Positions of all ranks, as far as they have answered.
pub(super) struct World {
    size: usize,
    ranks: SortedMap<usize, Status>,
}

impl World {
    fn since(asked: Instant, engine: &Engine) -> World {
        let answers = engine.answers.iter().filter(|(_, (at, _))| *at >= asked);
        let mut ranks: SortedMap<usize, Status> =
            answers.map(|(rank, (_, status))| (*rank, status.clone())).collect();
        ranks.insert(engine.rank, engine.status());
        World { size: engine.size, ranks }
    }

    /// Nothing is known but that the other ones of those do not answer.
    fn without(unresponsive: &[usize], shared: &SharedEngine) -> World {
        let answer = |rank: &usize| *rank == shared.rank || !unresponsive.contains(rank);
        let ranks = (0..shared.size).filter(answer).map(|rank| (rank, Status::default())).collect();
        World { size: shared.size, ranks }
    }

    /// Ranks that have not answered.
    pub(super) fn unresponsive(&self) -> Vec<usize> {
        (0..self.size).filter(|rank| !self.ranks.contains_key(rank)).collect()
    }

    /// Members that have not entered a collective, or do not answer, in ascending rank. If all have entered, the ranks
    /// that they miss because they first make another communicator.
    fn absent(&self, key: &CollectiveId) -> Vec<usize> {
        let absent = self.not_come(key);
        if !absent.is_empty() {
            return absent;
        }
        let unmade = key.members.iter().filter_map(|rank| Some(&self.ranks.get(rank)?.unmade));
        let waits = unmade.filter(|unmade| unmade.contains(&key.members)).filter_map(|unmade| unmade.first());
        let first =
            waits.flat_map(|group| self.not_come(&CollectiveId { members: group.clone(), number: 0 }));
        first.collect::<SortedSet<usize>>().into_iter().collect()
    }

    fn not_come(&self, key: &CollectiveId) -> Vec<usize> {
        let came = |status: &Status| {
            status.posted.iter().any(|(members, n)| *members == key.members && *n > key.number)
        };
        let mut absent: Vec<usize> =
            key.members.iter().copied().filter(|rank| !self.ranks.get(rank).is_some_and(came)).collect();
        absent.sort_unstable();
        absent
    }

    pub(super) fn named(&self, ranks: &[usize]) -> Vec<Missing> {
        ranks.iter().map(|rank| self.named_one(*rank)).collect()
    }

    fn named_one(&self, rank: usize) -> Missing {
        let status = self.ranks.get(&rank);
        let last_call = status.and_then(|s| s.last_call.clone());
        Missing { rank, last_call, unresponsive: status.is_none(), process: None }
    }

    /// The ranks that block those that a collective waits for.
    fn blocking(&self, key: &CollectiveId) -> Vec<Missing> {
        let waits_for = |rank: usize| {
            let waits = self.ranks.get(&rank).and_then(|status| status.waits.as_ref());
            waits.map_or_else(Vec::new, |key| self.absent(key))
        };
        blocking(self.absent(key), waits_for, |rank| self.named_one(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(members: [usize; 2]) -> CollectiveId {
        CollectiveId { members: members.into(), number: 0 }
    }

    /// Ranks 0 and 1 have both come to their collective, but rank 1 first needs a communicator with rank 2.
    #[test]
    fn who_holds_up_a_communicator_is_missed() {
        let status = |posted: &[[usize; 2]]| Status {
            posted: posted.iter().map(|members| ((*members).into(), 1)).collect(),
            unmade: posted.iter().map(|members| (*members).into()).collect(),
            ..Status::default()
        };
        let world = |second: Status| World {
            size: 3,
            ranks: SortedMap::from([(0, status(&[[0, 1]])), (1, status(&[[1, 2], [0, 1]])), (2, second)]),
        };
        let held_up = world(Status::default());
        assert_eq!(held_up.absent(&key([0, 1])), [2]);
        assert_eq!(held_up.blocking(&key([0, 1])).iter().map(|m| m.rank).collect::<Vec<_>>(), [2]);
        assert!(world(status(&[[1, 2]])).absent(&key([0, 1])).is_empty());
    }
}
