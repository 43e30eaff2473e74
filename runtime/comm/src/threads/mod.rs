//! Devices that are threads of one process: nothing to install, nothing copied but what the collective itself moves.
//!
//! **How an operation runs.** Members post the addresses of their buffers. Until the last one has come nothing is folded
//! or copied, not even what the others have posted. The last to come cuts the operation into tasks (a chunk to fold for
//! all, a range to copy), which any member that waits claims, one after the other: from then on cores share the work, and a
//! member whose core is busy holds nobody up. A small operation is done whole by the last to come, which saves a wake-up.
//! Who folds a chunk does not change a bit of it.
//!
//! **Why memory is safe.** An operation is `Gathering` until all members have posted, and only then touched by others.
//! While it gathers it may fail (mismatch, timeout, abort), under its lock, and is then never started. Once all have
//! posted it cannot fail: what remains is finite copying, and every member stays until the last task is done.
//!
//! **Waiting** spins for about a microsecond, then looks on for twenty while it gives its core to whoever can use it, then
//! sleeps on a condition variable: cores are for computing.
//!
//! **Who is stuck.** A rank that sleeps is seen to wait for its operation. A timeout follows these waits from rank to rank,
//! so that it names the rank that holds up all the others, and not one that waits itself.

mod op;
mod queue;
mod state;
pub(crate) mod work;

use crate::call::PostedCall;
use crate::transport::Completed;
use crate::{Abort, AsyncCollective, Call, CallName, CommError, Group, Missing, Tag, Transport};
use meshwright_sorted::SortedMap;
use op::GroupOp;
pub use op::Pending;
use queue::{OpQueue, Queues};
use state::Ending;
use std::sync::Arc;
use std::time::Duration;

/// How long a device waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until [`Transport::first_step_done`].
    pub first_step: Duration,
    /// From then on.
    pub later: Duration,
}

impl Default for Timeouts {
    /// 1,800 s, then 300 s.
    fn default() -> Self {
        Timeouts { first_step: Duration::from_secs(1800), later: Duration::from_secs(300) }
    }
}

impl Timeouts {
    /// The same time for all waits.
    pub fn all(time: Duration) -> Self {
        Timeouts { first_step: time, later: time }
    }

    /// 5 s, for tests.
    pub fn for_tests() -> Self {
        Timeouts::all(Duration::from_secs(5))
    }
}

/// Makes the devices of a process.
pub struct World;

impl World {
    /// Ends of a world of `n` devices, in ascending rank, to be given to a thread each.
    #[expect(clippy::new_ret_no_self, reason = "a world is nothing but its ends")]
    pub fn new(n: usize, timeouts: Timeouts) -> Vec<ThreadsTransport> {
        let world = Arc::new(Queues::new(n));
        let end = |rank| ThreadsTransport {
            rank,
            world: world.clone(),
            queues: SortedMap::new(),
            timeouts,
            timeout: timeouts.first_step,
        };
        (0..n).map(end).collect()
    }
}

/// One thread's end of a [`World`].
///
/// Dropped while its thread panics, it aborts the world. Dropped otherwise it *leaves*: collectives that it has not come
/// to fail at once, others are not disturbed.
pub struct ThreadsTransport {
    rank: usize,
    world: Arc<Queues>,
    /// Operations of each group, and the number of those that this device has posted.
    queues: SortedMap<Arc<[usize]>, (Arc<OpQueue>, u64)>,
    timeouts: Timeouts,
    timeout: Duration,
}

impl Transport for ThreadsTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.shared.size()
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let call = call.checked(group, tag, (self.rank, self.size()))?;
        if group.size() == 1 {
            let name = call.signature.name(tag);
            self.world.shared.entered(self.rank, &name);
            self.world.shared.check_aborted(&name)?;
            // SAFETY: the caller's promise.
            unsafe { work::run_alone(&call) };
            return Ok(Box::new(Completed));
        }
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { self.enter(group, tag, call) }?))
    }

    fn first_step_done(&mut self) {
        self.timeout = self.timeouts.later;
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(ThreadsAborter { rank: self.rank, world: self.world.clone() })
    }
}

impl ThreadsTransport {
    /// Takes part in a collective of several members, by a call that was checked.
    ///
    /// # Safety
    /// As [`Transport::post`].
    ///
    /// # Errors
    /// As [`Transport::post`].
    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    pub unsafe fn enter(&mut self, group: &Group, tag: &Tag, call: PostedCall) -> Result<Pending, CommError> {
        let name = call.signature.name(tag);
        self.world.shared.entered(self.rank, &name);
        if !self.queues.contains_key(group.ranks()) {
            let queue = self.world.of_group(group.shared_ranks());
            self.queues.insert(group.shared_ranks().clone(), (queue, 0));
        }
        let Some((queue, posted)) = self.queues.get_mut(group.ranks()) else {
            unreachable!("the queue of this group was just entered");
        };
        let op: Arc<GroupOp> = queue.op(*posted, &self.world.shared);
        *posted += 1;
        let full = op.post(group.position(), tag, call);
        if full.all_came {
            queue.retire();
        }
        full.result?;
        Ok(Pending::new(op, group.position(), name, self.timeout))
    }
}

impl Drop for ThreadsTransport {
    fn drop(&mut self) {
        let ending = if std::thread::panicking() {
            Ending::Aborted("its thread panicked".into())
        } else {
            Ending::Left
        };
        self.world.end(self.rank, ending);
        // Operations know what all share, so it must not hold one for ever.
        self.world.shared.waits(self.rank, None);
    }
}

struct ThreadsAborter {
    rank: usize,
    world: Arc<Queues>,
}

impl Abort for ThreadsAborter {
    fn abort(&self, reason: &str) {
        self.world.end(self.rank, Ending::Aborted(reason.into()));
    }

    fn aborted(&self) -> Option<(usize, String)> {
        self.world.shared.aborted()
    }

    fn entered(&self, call: &CallName) {
        self.world.shared.entered(self.rank, call);
    }

    fn last_calls(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        Some(ranks.iter().map(|rank| self.world.shared.missing(*rank)).collect())
    }
}
