//! What the threads of a world share: who has ended, and the operations that still gather members.

use super::op::Op;
use crate::{CallName, CommError, Missing};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Locks, also what a panicking thread had locked: no invariant here spans more than one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// How a device ended.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// Its transport is gone: it comes to no further collective.
    Left,
    /// By an error: all devices end.
    Aborted(String),
}

pub(super) struct Shared {
    rings: Mutex<BTreeMap<Arc<[usize]>, Arc<Ring>>>,
    /// The first abort, and who has left.
    endings: Mutex<Endings>,
    /// Whether `endings` says anything, so that posting need not lock it.
    any_ended: AtomicBool,
    /// Where each rank is.
    at: Vec<Mutex<Standing>>,
    /// Threads that can run at once.
    cores: usize,
}

/// Where a rank is, for the others' errors.
#[derive(Default)]
struct Standing {
    /// What it came to last.
    call: Option<CallName>,
    /// What it waits for, or failed in.
    waits: Option<Arc<Op>>,
}

struct Endings {
    aborted: Option<(usize, String)>,
    left: Vec<bool>,
}

/// The operations of one group that not all members have come to, in order.
pub(super) struct Ring {
    members: Arc<[usize]>,
    gathering: Mutex<Gathering>,
}

struct Gathering {
    /// Number of the first of `ops`.
    first: u64,
    ops: VecDeque<Arc<Op>>,
}

impl Shared {
    pub(super) fn new(size: usize) -> Self {
        Shared {
            rings: Mutex::default(),
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

    /// The ring of a group, made by whoever asks first.
    pub(super) fn ring(&self, members: &Arc<[usize]>) -> Arc<Ring> {
        let mut rings = lock(&self.rings);
        let new = || {
            let gathering = Mutex::new(Gathering { first: 0, ops: VecDeque::new() });
            Arc::new(Ring { members: members.clone(), gathering })
        };
        rings.entry(members.clone()).or_insert_with(new).clone()
    }

    /// Notes what a rank is in, for the others' errors.
    pub(super) fn came_to(&self, rank: usize, call: &CallName) {
        lock(&self.at[rank]).call = Some(call.clone());
    }

    /// A rank that has not come, with what it did last.
    pub(super) fn missing(&self, rank: usize) -> Missing {
        Missing { rank, at: lock(&self.at[rank]).call.clone(), silent: false }
    }

    /// Notes the operation that a rank sleeps for; none once that has ended well.
    pub(super) fn waits(&self, rank: usize, op: Option<Arc<Op>>) {
        let before = std::mem::replace(&mut lock(&self.at[rank]).waits, op);
        // The last hold on an operation goes without the lock.
        drop(before);
    }

    /// Of ranks that somebody waits for, and those that these wait for in turn, the ones that wait for nobody: they hold
    /// up all others. Where all wait in a circle, those whose last call has the lowest number.
    pub(super) fn stuck(&self, absent: Vec<usize>) -> Vec<Missing> {
        let (mut ahead, mut seen, mut stuck) = (absent, BTreeSet::new(), Vec::new());
        while let Some(rank) = ahead.pop() {
            if !seen.insert(rank) {
                continue;
            }
            let op = lock(&self.at[rank]).waits.clone();
            match op.map(|op| op.members_absent()) {
                Some(absent) if !absent.is_empty() => ahead.extend(absent),
                _ => stuck.push(rank),
            }
        }
        stuck.sort_unstable();
        if !stuck.is_empty() {
            return stuck.into_iter().map(|rank| self.missing(rank)).collect();
        }
        let circle: Vec<Missing> = seen.into_iter().map(|rank| self.missing(rank)).collect();
        let number = |m: &Missing| m.at.as_ref().map(|call| call.tag.sequence);
        let least = circle.iter().map(number).min();
        circle.into_iter().filter(|m| Some(number(m)) == least).collect()
    }

    /// Why an operation cannot gather any more, if some device has ended: `absent` are the members yet to come.
    ///
    /// No wake-up is lost: `end` notes the ending before it looks through the rings, and an operation enters its ring
    /// before its members look here; so either `end` finds the operation or its members find the ending.
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
            return Some(CommError::Aborted {
                rank: *rank,
                reason: reason.clone(),
                call: Some(call.clone()),
            });
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

    /// Notes that a device ended, and ends the operations that cannot do without it.
    pub(super) fn end(&self, rank: usize, ending: Ending) {
        {
            let mut endings = lock(&self.endings);
            match ending {
                Ending::Left => endings.left[rank] = true,
                Ending::Aborted(reason) => {
                    endings.aborted.get_or_insert((rank, reason));
                }
            }
            self.any_ended.store(true, Ordering::SeqCst);
        }
        let rings: Vec<Arc<Ring>> = lock(&self.rings).values().cloned().collect();
        for ring in rings {
            let ops: Vec<Arc<Op>> = lock(&ring.gathering).ops.iter().cloned().collect();
            for op in ops {
                op.look_for_endings();
            }
        }
    }
}

impl Ring {
    /// The operation of that number. Every member asks for the numbers in order, so it is among those that gather, or it
    /// is the next one.
    pub(super) fn op(&self, number: u64, shared: &Arc<Shared>) -> Arc<Op> {
        let mut gathering = lock(&self.gathering);
        let index = (number - gathering.first) as usize;
        if index == gathering.ops.len() {
            gathering.ops.push_back(Arc::new(Op::new(self.members.clone(), shared.clone())));
        }
        gathering.ops[index].clone()
    }

    /// Forgets the operations at the front that all members have come to.
    pub(super) fn retire(&self) {
        let mut gathering = lock(&self.gathering);
        while gathering.ops.front().is_some_and(|op| op.all_came()) {
            gathering.ops.pop_front();
            gathering.first += 1;
        }
    }
}
