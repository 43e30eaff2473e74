//! One end of a transport for two users: a device, and the process that it is the only device of. They use it in turns, so
//! the order of collectives is the program's.

use meshwright_comm::{Abort, AsyncCollective, Call, CommError, Group, Tag, Transport};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A share of an end. The end goes with the last one.
pub(crate) struct SharedEnd<T> {
    end: Arc<Mutex<T>>,
    rank: usize,
    size: usize,
    aborter: Arc<dyn Abort>,
}

/// Two shares of an end.
pub(crate) fn shared<T: Transport>(end: T) -> (SharedEnd<T>, SharedEnd<T>) {
    let (rank, size, aborter) = (end.rank(), end.size(), end.aborter());
    let end = Arc::new(Mutex::new(end));
    let share = |end| SharedEnd { end, rank, size, aborter: aborter.clone() };
    (share(end.clone()), share(end))
}

impl<T: Transport + 'static> SharedEnd<T> {
    /// Shares of this end, for other clusters: one at a time, and none while this one is alive, unless sharing is allowed.
    pub(crate) fn lent(&self) -> impl Fn(bool) -> Option<Box<dyn Transport>> + Send + use<T> {
        let (end, rank, size, aborter) = (self.end.clone(), self.rank, self.size, self.aborter.clone());
        move |beside| {
            // The share of the process, and the one from which these come.
            let free = beside || Arc::strong_count(&end) <= 2;
            let share = || SharedEnd { end: end.clone(), rank, size, aborter: aborter.clone() };
            free.then(|| Box::new(share()) as Box<dyn Transport>)
        }
    }
}

impl<T> SharedEnd<T> {
    fn end(&self) -> MutexGuard<'_, T> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Transport> Transport for SharedEnd<T> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        // SAFETY: the caller promises for the memory what the end requires.
        unsafe { self.end().post(group, tag, call) }
    }

    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        self.end().prepare_links(links)
    }

    fn first_step_done(&mut self) {
        self.end().first_step_done();
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.aborter.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::cluster::processes::Processes;
    use meshwright_comm::{Timeouts, World};

    #[test]
    fn one_cluster_after_the_other_has_the_end() {
        let end = World::new(1, Timeouts::default()).remove(0);
        let processes = Processes::of_one_device_each(end).unwrap();
        for _ in 0..3 {
            let ends = processes.take_ends(false).unwrap();
            assert_eq!(ends.len(), 1);
            assert!(processes.take_ends(false).is_none(), "two have it");
            assert!(processes.take_ends(true).is_some(), "two may have it that know of each other");
        }
    }
}
