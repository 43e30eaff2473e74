//! State of a world that its threads share: who has ended, and the position of each.

use crate::waits::blocking;
use crate::{CallName, CommError, Missing};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Locks, also what a panicking thread had locked: no invariant here spans more than one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The end of a device.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// Its transport is gone: it comes to no further collective.
    Left,
    /// By an error: all devices end.
    Aborted(String),
}

pub(super) struct WorldState {
    /// The first abort, and who has left.
    endings: Mutex<Endings>,
    /// Whether `endings` says anything, so that posting need not lock it.
    any_ended: AtomicBool,
    /// Position of each rank.
    at: Vec<Mutex<RankStatus>>,
    /// Threads that can run at once.
    cores: usize,
}

/// Position of a rank, for the others' errors.
#[derive(Default)]
struct RankStatus {
    /// Its last call.
    call: Option<CallName>,
    /// The call for which it waits, or in which it failed.
    waits: Option<Arc<dyn Waited>>,
}

struct Endings {
    aborted: Option<(usize, String)>,
    left: Vec<bool>,
}

/// A call for which a rank may wait.
pub(super) trait Waited: Send + Sync {
    /// The ranks without which it does not end.
    fn members_absent(&self) -> Vec<usize>;
}

impl WorldState {
    pub(super) fn new(size: usize) -> Self {
        WorldState {
            endings: Mutex::new(Endings { aborted: None, left: vec![false; size] }),
            any_ended: AtomicBool::new(false),
            at: (0..size).map(|_| Mutex::default()).collect(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.at.len()
    }

    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// Notes what a rank is in, for the others' errors.
    pub(super) fn entered(&self, rank: usize, call: &CallName) {
        lock(&self.at[rank]).call = Some(call.clone());
    }

    /// A rank that has not come, with what it did last.
    pub(super) fn missing(&self, rank: usize) -> Missing {
        Missing { rank, last_call: lock(&self.at[rank]).call.clone(), unresponsive: false, process: None }
    }

    /// Notes the operation that a rank sleeps for; none once that has ended well.
    pub(super) fn waits(&self, rank: usize, op: Option<Arc<dyn Waited>>) {
        let before = std::mem::replace(&mut lock(&self.at[rank]).waits, op);
        // The last hold on an operation goes without the lock.
        drop(before);
    }

    /// The ranks that block the ranks for which others wait.
    pub(super) fn blocking(&self, absent: Vec<usize>) -> Vec<Missing> {
        let waits_for = |rank: usize| {
            let op = lock(&self.at[rank]).waits.clone();
            op.map_or_else(Vec::new, |op| op.members_absent())
        };
        blocking(absent, waits_for, |rank| self.missing(rank))
    }

    /// Why an operation cannot gather any more, if some device has ended: `absent` are the members yet to come.
    ///
    /// No wake-up is lost: an ending is noted before the queues are looked through, and an operation enters its queue before
    /// its members look here; so either the operation is found or its members find the ending.
    pub(super) fn why_hopeless(
        &self,
        absent: impl IntoIterator<Item = usize>,
        call: &CallName,
    ) -> Option<CommError> {
        if !self.any_ended.load(Ordering::SeqCst) {
            return None;
        }
        let endings = lock(&self.endings);
        if let Some((rank, reason)) = &endings.aborted {
            let (rank, reason, call) = (*rank, reason.clone(), Some(call.clone()));
            return Some(CommError::Aborted { rank, reason, call });
        }
        let rank = absent.into_iter().filter(|r| endings.left[*r]).min()?;
        Some(CommError::Left { rank, call: call.clone() })
    }

    /// The first abort.
    pub(super) fn aborted(&self) -> Option<(usize, String)> {
        if !self.any_ended.load(Ordering::SeqCst) {
            return None;
        }
        lock(&self.endings).aborted.clone()
    }

    pub(super) fn check_aborted(&self, call: &CallName) -> Result<(), CommError> {
        self.why_hopeless([], call).map_or(Ok(()), Err)
    }

    /// Notes that a device ended.
    pub(super) fn end(&self, rank: usize, ending: Ending) {
        let mut endings = lock(&self.endings);
        match ending {
            Ending::Left => endings.left[rank] = true,
            Ending::Aborted(reason) => {
                endings.aborted.get_or_insert((rank, reason));
            }
        }
        self.any_ended.store(true, Ordering::SeqCst);
    }
}
