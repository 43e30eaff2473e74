//! Several devices in each process: a node's GPUs in one process, or threads in processes.
//!
//! **A world of threads in each process** has an end for every device of the job. Those of this process's devices are given
//! away; the proxy thread ([`crate::proxy`]) stands in for the others. Before a device posts a collective with members elsewhere,
//! it sends its call with the data to their processes; the proxy thread there posts the same call in its name. So each
//! process has all calls of its collectives in its own memory, and comparing them, folding from left to right in group
//! order, and naming those that are missing is what threads do ([`meshwright_comm::threads`]), with the same bits.
//!
//! **What it costs.** A process sends what each of its members reads once to every other process of the group, where MPI's
//! own collectives would fold on the way: good for what devices agree on and for small meshes of the host; between GPUs NCCL
//! moves the data.

use crate::process::MpiTransport;
use crate::process_devices::Several;
use crate::proxy::ProxyThread;
use crate::timing::{ANSWER, LAST_ANSWER};
use meshwright_comm::parts::Pending;
use meshwright_comm::{
    Abort, AsyncCollective, Call, CallName, Collectives, CommError, Group, Missing, Tag, ThreadsTransport,
    Transport, World,
};
use meshwright_sorted::SortedSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a collective that is cancelled may still take to end: messages may be on their way.
const GRACE: Duration = Duration::from_millis(400);

/// The end of one of a process's devices.
///
/// Dropped while its thread panics, it aborts the world. Dropped otherwise it *leaves*, as [`ThreadsTransport`] does. A
/// collective with members in other processes that is given up before all have come aborts the world: there is nobody who
/// could tell all members alike that it fails.
pub struct DeviceTransport {
    end: Option<ThreadsTransport>,
    rank: usize,
    size: usize,
    several: Arc<Several>,
}

impl MpiTransport {
    /// The largest of the numbers that the processes give. All call it together.
    ///
    /// # Errors
    ///
    /// Where other processes do not come.
    pub fn largest(&mut self, mine: usize) -> Result<usize, CommError> {
        Ok(self.numbers(mine, "the largest number of devices")?.into_iter().max().unwrap_or(mine))
    }

    /// A number of each process.
    fn numbers(&mut self, mine: usize, what: &str) -> Result<Vec<usize>, CommError> {
        let (rank, size) = (self.rank(), self.size());
        let group = Group::world(size, rank);
        let group = group.map_err(|e| CommError::Library { rank, call: None, reason: e.to_string() })?;
        self.gather_values(&group, &Tag::new(0, what, 0), &mine)
    }

    /// The ends of `devices` devices of this process, in ascending rank; the devices of the processes are numbered one
    /// after the other. All processes call it together, each with its number, at least 1. This end remains for what processes
    /// tell each other, and must outlive them.
    ///
    /// # Errors
    ///
    /// Where other processes do not come.
    pub fn devices(&mut self, devices: usize) -> Result<Vec<DeviceTransport>, CommError> {
        let counts = self.numbers(devices, "the devices of each process")?;
        let mut total = 0;
        let range = |n: &usize| {
            total += n;
            total - n..total
        };
        let processes: Vec<Range<usize>> = counts.iter().map(range).collect();
        let here = processes[self.rank()].clone();
        let (mut own, mut others) = (vec![], vec![]);
        for end in World::new(total, self.options.timeouts) {
            if here.contains(&end.rank()) { own.push(end) } else { others.push(end) }
        }
        let proxy = ProxyThread::start(others, own.first().map(|e| e.aborter()));
        let proxy = proxy.map_err(|e| CommError::Library {
            rank: self.rank(),
            call: None,
            reason: format!("no thread to stand in for other processes: {e}"),
        })?;
        let several = Arc::new(Several {
            mpi: self.shared.clone(),
            processes,
            alive: AtomicUsize::new(own.len()),
            under_way: AtomicUsize::new(0),
            proxy: proxy.thread().clone(),
        });
        proxy.works_for(&several);
        let end = |end: ThreadsTransport| DeviceTransport {
            rank: end.rank(),
            size: total,
            end: Some(end),
            several: several.clone(),
        };
        Ok(own.into_iter().map(end).collect())
    }
}

impl DeviceTransport {
    fn threads(&mut self) -> &mut ThreadsTransport {
        match &mut self.end {
            Some(end) => end,
            None => unreachable!("the end is there until the drop"),
        }
    }
}

impl Transport for DeviceTransport {
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
        let several = self.several.clone();
        let processes: SortedSet<usize> = group.ranks().iter().map(|d| several.process(*d)).collect();
        if processes.len() <= 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.threads().post(group, tag, call) };
        }
        let call = call.checked(group, tag, (self.rank, self.size))?;
        let name = call.signature.name(tag);
        // Before it is posted here: a call that fails here has to fail elsewhere too, where the same calls come together.
        let elsewhere = processes.into_iter().filter(|p| *p != several.mpi.rank);
        // SAFETY: the caller's promise.
        let told = unsafe { several.tell_call(elsewhere, (self.rank, group.shared_ranks()), tag, &call) };
        told.map_err(|reason| CommError::Library { rank: self.rank, call: Some(name.clone()), reason })?;
        several.under_way.fetch_add(1, Ordering::Relaxed);
        several.proxy.unpark();
        // SAFETY: the caller's promise.
        let entered = unsafe { self.threads().enter(group, tag, call) };
        let aborter = self.aborter();
        let mut crossing = Crossing { inner: None, result: None, rank: self.rank, name, several, aborter };
        match entered {
            Ok(pending) => {
                crossing.inner = Some(pending);
                Ok(Box::new(crossing))
            }
            Err(e) => {
                let e = crossing.explained(e);
                crossing.result = Some(Err(e.clone()));
                Err(e)
            }
        }
    }

    fn first_step_done(&mut self) {
        self.threads().first_step_done();
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        let threads = match &self.end {
            Some(end) => end.aborter(),
            None => unreachable!("the end is there until the drop"),
        };
        Arc::new(DeviceAborter { rank: self.rank, threads, several: self.several.clone() })
    }
}

impl Drop for DeviceTransport {
    fn drop(&mut self) {
        let reason = std::thread::panicking().then_some("its thread panicked");
        self.several.tell_end(self.rank, reason);
        drop(self.end.take());
        self.several.alive.fetch_sub(1, Ordering::Release);
        self.several.proxy.unpark();
    }
}

/// A collective with members in several processes.
struct Crossing {
    inner: Option<Pending>,
    result: Option<Result<(), CommError>>,
    rank: usize,
    name: CallName,
    several: Arc<Several>,
    aborter: Arc<dyn Abort>,
}

impl Crossing {
    /// An error of the world of threads, with what MPI knows of the processes. The other processes end too, unless they
    /// find the same.
    fn explained(&self, error: CommError) -> CommError {
        let told = self.several.mpi.interrupted();
        match error {
            CommError::Timeout { rank, call, waited, mut missing, mut stuck } if !told => {
                let unresponsive = self.several.unresponsive(ANSWER);
                for m in missing.iter_mut().chain(&mut stuck) {
                    m.unresponsive = unresponsive.contains(&m.rank);
                    m.process = Some(self.several.process(m.rank));
                }
                let error = CommError::Timeout { rank, call, waited, missing, stuck };
                self.aborter.abort(&error.to_string());
                error
            }
            CommError::Timeout { .. } | CommError::Aborted { .. } if told => {
                let unresponsive: Vec<usize> = self.several.unresponsive(LAST_ANSWER).into_iter().collect();
                let mut missing = self.aborter.last_calls(&unresponsive).unwrap_or_default();
                for m in &mut missing {
                    (m.unresponsive, m.process) = (true, Some(self.several.process(m.rank)));
                }
                CommError::Terminated { rank: self.rank, call: self.name.clone(), missing }
            }
            other => other,
        }
    }
}

impl AsyncCollective for Crossing {
    fn wait(&mut self) -> Result<(), CommError> {
        if self.result.is_none() {
            let done = self.inner.as_mut().map_or(Ok(()), AsyncCollective::wait);
            self.result = Some(done.map_err(|e| self.explained(e)));
        }
        self.result.clone().unwrap_or(Ok(()))
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().filter(|_| self.result.is_none())
            && !std::thread::panicking()
            && !inner.cancelled_after(GRACE)
        {
            self.aborter.abort(&format!("it cancelled {} before all ranks had entered it", self.name));
        }
        self.several.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

struct DeviceAborter {
    rank: usize,
    threads: Arc<dyn Abort>,
    several: Arc<Several>,
}

impl Abort for DeviceAborter {
    fn abort(&self, reason: &str) {
        // First here: what the other processes are told comes back by the proxy thread, which knows the process alone.
        let before = self.threads.aborted();
        self.threads.abort(reason);
        // Of several devices that abort at a time, the one that counts here speaks.
        let counts = self.threads.aborted().is_some_and(|(rank, _)| rank == self.rank);
        if before.is_none() && counts {
            self.several.abort(self.rank, reason);
        }
    }

    fn aborted(&self) -> Option<(usize, String)> {
        self.threads.aborted()
    }

    fn entered(&self, call: &CallName) {
        self.threads.entered(call);
    }

    fn last_calls(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        self.threads.last_calls(ranks)
    }
}
