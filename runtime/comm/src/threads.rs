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
mod ring;
pub(crate) mod work;

use crate::{Abort, Call, CallName, CommError, Group, InFlight, Missing, Tag, Transport};
use op::Op;
pub(crate) use op::Pending;
use ring::{Ending, Shared};
use std::collections::BTreeMap;
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
        let shared = Arc::new(Shared::new(n));
        let end = |rank| ThreadsTransport {
            rank,
            shared: shared.clone(),
            rings: BTreeMap::new(),
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
    shared: Arc<Shared>,
    /// Operations of each group, and the number of those that this device has posted.
    rings: BTreeMap<Arc<[usize]>, (Arc<ring::Ring>, u64)>,
    timeouts: Timeouts,
    timeout: Duration,
}

impl Transport for ThreadsTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size()
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn InFlight>, CommError> {
        let name = call.name(tag);
        group.check(self.rank, self.size(), &name)?;
        call.check(group, tag)?;
        if group.size() == 1 {
            self.shared.came_to(self.rank, &name);
            self.shared.check_aborted(&name)?;
            work::Work::new(&[&call.detach()]).run_all();
            return Ok(Box::new(Alone));
        }
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { self.enter(group, tag, call) }?))
    }

    fn first_step_done(&mut self) {
        self.timeout = self.timeouts.later;
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        Arc::new(Aborter { rank: self.rank, shared: self.shared.clone() })
    }
}

impl ThreadsTransport {
    /// Takes part in a collective of several members, by a call that was checked.
    ///
    /// # Safety
    /// As [`Transport::post`].
    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    pub(crate) unsafe fn enter(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Pending, CommError> {
        let name = call.name(tag);
        self.shared.came_to(self.rank, &name);
        // The caller promises that the memory outlives the operation: see the module's page.
        let call = call.detach();
        if !self.rings.contains_key(group.ranks()) {
            let ring = self.shared.ring(group.shared_ranks());
            self.rings.insert(group.shared_ranks().clone(), (ring, 0));
        }
        let Some((ring, posted)) = self.rings.get_mut(group.ranks()) else {
            unreachable!("the ring of this group was just entered");
        };
        let op: Arc<Op> = ring.op(*posted, &self.shared);
        *posted += 1;
        let full = op.post(group.position(), tag, call);
        if full.all_came {
            ring.retire();
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
        self.shared.end(self.rank, ending);
        // Operations know what all share, so it must not hold one for ever.
        self.shared.waits(self.rank, None);
    }
}

struct Aborter {
    rank: usize,
    shared: Arc<Shared>,
}

impl Abort for Aborter {
    fn abort(&self, reason: &str) {
        self.shared.end(self.rank, Ending::Aborted(reason.into()));
    }

    fn aborted(&self) -> Option<(usize, String)> {
        self.shared.aborted()
    }

    fn came_to(&self, call: &CallName) {
        self.shared.came_to(self.rank, call);
    }

    fn whereabouts(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        Some(ranks.iter().map(|rank| self.shared.missing(*rank)).collect())
    }
}

/// The end of a collective of one member.
struct Alone;

impl InFlight for Alone {
    fn complete(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}
