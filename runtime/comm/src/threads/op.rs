//! One collective of one group: its members come, it runs, and it ends for all in the same way.

use super::state::{Waited, WorldState, lock};
use super::work::Work;
use crate::call::PostedCall;
use crate::{AsyncCollective, CallName, CommError, Tag};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Members are yet to come. Nobody touches another's memory, and the operation may fail.
const GATHERING: u8 = 0;
/// All have come, and memory is moved. It cannot fail any more.
const RUNNING: u8 = 1;
/// Nobody touches any memory any more.
const DONE: u8 = 2;
/// Failed while gathering: nobody ever touches another's memory.
const FAILED: u8 = 3;

/// Time for which a member polls without pause. Waking a thread costs several times as much.
const SPIN: Duration = Duration::from_nanos(1500);

/// Time for which it then polls, and yields its core between polls, before it sleeps. With more members than cores,
/// this passes the core on to the next member for a fraction of a wake-up.
const YIELD: Duration = Duration::from_micros(20);

/// Operations that read no more bytes than this are done by the last to come.
const SMALL: usize = 64 * 1024;

pub(super) struct GroupOp {
    members: Arc<[usize]>,
    shared: Arc<WorldState>,
    /// Changed under the lock of `state`, read without it by those who spin.
    phase: AtomicU8,
    all_came: AtomicBool,
    state: Mutex<OpState>,
    changed: Condvar,
    /// Set before the phase becomes `RUNNING`.
    work: OnceLock<Work>,
}

struct OpState {
    /// The call of each member, by position. Only sizes and counts are read from it, never memory.
    posts: Vec<Option<(Tag, PostedCall)>>,
    /// Members that came, those included that found the operation failed.
    came: usize,
    /// Members that sleep until `changed`: no others need to be woken.
    sleepers: usize,
    failure: Option<CommError>,
}

/// Result of posting.
pub(super) struct Posted {
    /// Whether this was the last member.
    pub(super) all_came: bool,
    pub(super) result: Result<(), CommError>,
}

impl GroupOp {
    pub(super) fn new(members: Arc<[usize]>, shared: Arc<WorldState>) -> Self {
        let posts = members.iter().map(|_| None).collect();
        GroupOp {
            members,
            shared,
            phase: AtomicU8::new(GATHERING),
            all_came: AtomicBool::new(false),
            state: Mutex::new(OpState { posts, came: 0, sleepers: 0, failure: None }),
            changed: Condvar::new(),
            work: OnceLock::new(),
        }
    }

    pub(super) fn all_came(&self) -> bool {
        self.all_came.load(Ordering::Acquire)
    }

    /// Adds a member's call. The last one starts the work, and does it if it is small.
    pub(super) fn post(&self, position: usize, tag: &Tag, call: PostedCall) -> Posted {
        let mut state = lock(&self.state);
        state.came += 1;
        let all_came = state.came == self.members.len();
        self.all_came.store(all_came, Ordering::Release);
        if state.failure.is_none() {
            let failure = self
                .shared
                .why_hopeless(self.absent(&state, Some(position)), &call.signature.name(tag))
                .or_else(|| self.mismatch(&state, position, tag, &call));
            if let Some(failure) = failure {
                self.fail(&mut state, failure);
            }
        }
        if let Some(failure) = &state.failure {
            return Posted { all_came, result: Err(failure.clone()) };
        }
        state.posts[position] = Some((tag.clone(), call));
        if all_came {
            let calls: Vec<_> = state.posts.iter().flatten().map(|(_, call)| call).collect();
            let work = self.work.get_or_init(|| Work::new(&calls));
            if work.len() == 0 {
                self.done(state);
            } else {
                self.phase.store(RUNNING, Ordering::Release);
                let sleepers = state.sleepers;
                drop(state);
                self.begin(work, sleepers);
            }
        }
        Posted { all_came, result: Ok(()) }
    }

    fn begin(&self, work: &Work, sleepers: usize) {
        if work.bytes() <= SMALL {
            self.help(work);
            return;
        }
        // As many as can run at once, this thread included, but at least one, since this one may have other things to do.
        let helpers = self.shared.cores().min(self.members.len()).saturating_sub(1).max(1);
        for _ in 0..helpers.min(sleepers) {
            self.changed.notify_one();
        }
    }

    fn help(&self, work: &Work) {
        if work.run_all() {
            self.done(lock(&self.state));
        }
    }

    fn done(&self, state: MutexGuard<'_, OpState>) {
        self.phase.store(DONE, Ordering::Release);
        // Who is not counted yet looks at the phase once more, under the lock, before it sleeps.
        let sleepers = state.sleepers;
        // Those who wake need the lock.
        drop(state);
        if sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Ends the operation without a result, if it still gathers.
    fn fail(&self, state: &mut OpState, failure: CommError) {
        if self.phase.load(Ordering::Acquire) == GATHERING {
            state.failure = Some(failure);
            self.phase.store(FAILED, Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// Ranks that have not posted, without the one at `position`, which is about to.
    fn absent(&self, state: &OpState, position: Option<usize>) -> Vec<usize> {
        let members = self.members.iter().zip(&state.posts).enumerate();
        members
            .filter(|(i, (_, post))| post.is_none() && Some(*i) != position)
            .map(|(_, (rank, _))| *rank)
            .collect()
    }

    fn mismatch(&self, state: &OpState, position: usize, tag: &Tag, call: &PostedCall) -> Option<CommError> {
        state.posts.iter().enumerate().find_map(|(i, post)| {
            let (other_tag, other) = post.as_ref()?;
            let here = (position, tag, &call.signature);
            CommError::mismatch(&self.members, here, (i, other_tag, &other.signature))
        })
    }

    /// Fails if a device has ended without which the operation cannot gather.
    pub(super) fn look_for_endings(&self) {
        let mut state = lock(&self.state);
        let Some((tag, call)) = state.posts.iter().flatten().next() else {
            // Whoever posts first looks by itself.
            return;
        };
        if let Some(failure) = self.shared.why_hopeless(self.absent(&state, None), &call.signature.name(tag))
        {
            self.fail(&mut state, failure);
        }
    }

    /// Waits for the end, and works toward it.
    fn wait(self: &Arc<Self>, position: usize, name: &CallName, timeout: Duration) -> Result<(), CommError> {
        self.spin_while(GATHERING);
        if self.phase.load(Ordering::Acquire) == RUNNING {
            if let Some(work) = self.work.get() {
                self.help(work);
            }
            self.spin_while(RUNNING);
        }
        match self.phase.load(Ordering::Acquire) {
            DONE => Ok(()),
            _ => self.sleep(position, name, timeout),
        }
    }

    fn spin_while(&self, phase: u8) {
        let mut since = None;
        while self.phase.load(Ordering::Acquire) == phase {
            match since.get_or_insert_with(Instant::now).elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < SPIN + YIELD => std::thread::yield_now(),
                _ => return,
            }
        }
    }

    fn sleep(self: &Arc<Self>, position: usize, name: &CallName, timeout: Duration) -> Result<(), CommError> {
        let rank = self.members[position];
        // To be seen while this waits, and after it has failed.
        self.shared.waits(rank, Some(self.clone()));
        self.sleep_until_done(rank, name, timeout)?;
        self.shared.waits(rank, None);
        Ok(())
    }

    fn sleep_until_done(&self, rank: usize, name: &CallName, timeout: Duration) -> Result<(), CommError> {
        let since = Instant::now();
        let mut state = lock(&self.state);
        loop {
            match self.phase.load(Ordering::Acquire) {
                DONE => return Ok(()),
                RUNNING => match self.work.get() {
                    Some(work) if work.unclaimed() => {
                        drop(state);
                        self.help(work);
                        state = lock(&self.state);
                    }
                    // No timeout: others are copying, which ends.
                    _ => state = self.asleep(state, None),
                },
                GATHERING => {
                    let waited = since.elapsed();
                    if waited >= timeout {
                        // Looks into other operations, so this one must not be locked.
                        drop(state);
                        let stuck = self.shared.blocking(self.members_absent());
                        state = lock(&self.state);
                        let mut absent = self.absent(&state, None);
                        absent.sort_unstable();
                        let missing = absent.into_iter().map(|rank| self.shared.missing(rank)).collect();
                        let call = name.clone();
                        self.fail(&mut state, CommError::Timeout { rank, call, waited, missing, stuck });
                        continue;
                    }
                    state = self.asleep(state, Some(timeout - waited));
                }
                _ => {
                    return match &state.failure {
                        Some(failure) => Err(failure.clone()),
                        None => unreachable!("a failed operation has a failure"),
                    };
                }
            }
        }
    }

    /// Sleeps until something changes, but no longer than `most`.
    fn asleep<'s>(
        &'s self,
        mut state: MutexGuard<'s, OpState>,
        most: Option<Duration>,
    ) -> MutexGuard<'s, OpState> {
        state.sleepers += 1;
        let mut state = match most {
            Some(most) => {
                let woken = self.changed.wait_timeout(state, most);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
        state.sleepers -= 1;
        state
    }

    /// A member goes without waiting: the operation fails if it still gathers, and is awaited otherwise.
    fn give_up(self: &Arc<Self>, position: usize, name: &CallName, timeout: Duration) {
        let rank = self.members[position];
        let failure = if std::thread::panicking() {
            let reason = "its thread panicked".to_string();
            CommError::Aborted { rank, reason, call: Some(name.clone()) }
        } else {
            CommError::Cancelled { rank, call: name.clone() }
        };
        self.fail(&mut lock(&self.state), failure);
        // The failure, or the end of the work: either way no memory is touched from here on.
        let _ended = self.wait(position, name, timeout);
    }
}

impl Waited for GroupOp {
    fn members_absent(&self) -> Vec<usize> {
        self.absent(&lock(&self.state), None)
    }
}

/// A member's hold on an operation.
pub struct Pending {
    op: Arc<GroupOp>,
    position: usize,
    name: CallName,
    timeout: Duration,
    result: Option<Result<(), CommError>>,
}

impl Pending {
    pub(super) fn new(op: Arc<GroupOp>, position: usize, name: CallName, timeout: Duration) -> Self {
        Pending { op, position, name, timeout, result: None }
    }

    /// Whether the operation has ended, well or not: nobody touches the member's memory any more.
    pub fn is_over(&self) -> bool {
        matches!(self.op.phase.load(Ordering::Acquire), DONE | FAILED)
    }

    /// Cancels the operation, unless all members enter within that time. Whether they did, or it failed before.
    pub fn cancelled_after(mut self, grace: Duration) -> bool {
        let since = Instant::now();
        while self.op.phase.load(Ordering::Acquire) == GATHERING {
            if since.elapsed() >= grace {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ended = self.wait();
        true
    }
}

impl AsyncCollective for Pending {
    fn wait(&mut self) -> Result<(), CommError> {
        if self.result.is_none() {
            self.result = Some(self.op.wait(self.position, &self.name, self.timeout));
        }
        self.result.clone().unwrap_or(Ok(()))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.result.is_none() {
            self.op.give_up(self.position, &self.name, self.timeout);
        }
    }
}
