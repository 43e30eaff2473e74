//! Several devices in each process: a node's GPUs in one process, or threads in processes.
//!
//! **A world of threads in each process** has an end for every device of the job. Those of this process's devices are given
//! away; the courier ([`super::courier`]) plays the others. Before a device posts a collective with members elsewhere, it
//! sends its call with the data to their processes, by letters; the courier there posts the same call in its name. So each
//! process has all calls of its collectives in its own memory, and comparing them, folding from left to right in group
//! order, and naming those that are missing is what threads do ([`crate::threads`]), with the same bits.
//!
//! **What it costs.** A process sends what each of its members reads once to every other process of the group, where MPI's
//! own collectives would fold on the way: good for what devices agree on and for small meshes of the host; between GPUs NCCL
//! moves the data.

use super::MpiTransport;
use super::courier::{Courier, Told};
use super::letter;
use super::shared::Shared;
use super::wait::{ANSWER, LAST_ANSWER, ask};
use crate::threads::Pending;
use crate::{
    Abort, Buf, BufMut, Call, CallName, Collectives, CommError, Group, InFlight, Missing, Tag,
    ThreadsTransport, Transport, World,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// How long a collective that is given up may still take to end: letters may be on their way.
const GRACE: Duration = Duration::from_millis(400);

/// What the devices of a process share.
pub(super) struct Several {
    pub(super) mpi: Arc<Shared>,
    /// The devices of each process.
    pub(super) processes: Vec<Range<usize>>,
    /// Ends of this process that are not dropped.
    pub(super) alive: AtomicUsize,
    /// Collectives of this process's devices with members elsewhere that are under way.
    pub(super) under_way: AtomicUsize,
    courier: Thread,
}

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
        let (mut all, mine) = (vec![0u8; size * 8], (mine as u64).to_le_bytes());
        self.all_gather_v(
            &group,
            &Tag::new(0, what, 0),
            Buf::new(&mine),
            vec![8; size],
            BufMut::new(&mut all),
        )?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| (n << 8) | usize::from(*byte));
        Ok(all.chunks(8).map(number).collect())
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
        let courier = Courier::start(others, own.first().map(|e| e.aborter()));
        let courier = courier.map_err(|e| CommError::Library {
            rank: self.rank(),
            call: None,
            reason: format!("no thread for letters: {e}"),
        })?;
        let several = Arc::new(Several {
            mpi: self.shared.clone(),
            processes,
            alive: AtomicUsize::new(own.len()),
            under_way: AtomicUsize::new(0),
            courier: courier.thread().clone(),
        });
        courier.works_for(&several);
        let end = |end: ThreadsTransport| DeviceTransport {
            rank: end.rank(),
            size: total,
            end: Some(end),
            several: several.clone(),
        };
        Ok(own.into_iter().map(end).collect())
    }
}

impl Several {
    fn process(&self, device: usize) -> usize {
        self.processes.partition_point(|devices| devices.end <= device)
    }

    /// Tells other processes something.
    fn tell(&self, processes: impl IntoIterator<Item = usize>, letter: &[u8]) -> Result<(), String> {
        let mut engine = self.mpi.engine();
        processes.into_iter().try_for_each(|process| engine.send_letter(process, letter))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.processes.len()).filter(|p| *p != self.mpi.rank)
    }

    /// Ends all other processes for a device of this one.
    fn abort(&self, device: usize, reason: &str) {
        if let Some(mut engine) = self.mpi.engine_within(Duration::from_secs(2)) {
            let letter = letter::ended(device, Some(reason));
            for process in self.others() {
                let _unreachable = engine.send_letter(process, &letter);
            }
            // Whoever has no devices any more is told by this.
            engine.abort(self.mpi.rank, reason);
            self.mpi.flush(&mut engine);
        }
    }

    /// The devices of the processes that do not answer.
    fn silent(&self, most: Duration) -> BTreeSet<usize> {
        let asked = ask::<()>(&self.mpi, most, |_| None);
        let processes = asked.map(|world| world.silent()).unwrap_or_default();
        processes.into_iter().flat_map(|p| self.processes[p].clone()).collect()
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
    ) -> Result<Box<dyn InFlight>, CommError> {
        let name = call.name(tag);
        group.check(self.rank, self.size, &name)?;
        call.check(group, tag)?;
        let several = self.several.clone();
        let processes: BTreeSet<usize> = group.ranks().iter().map(|d| several.process(*d)).collect();
        if processes.len() == 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.threads().post(group, tag, call) };
        }
        // Before it is posted here: a call that fails here has to fail elsewhere too, where the same calls come together.
        // SAFETY: the caller's promise.
        let letter = unsafe { letter::came(self.rank, group.ranks(), tag, &call) };
        let elsewhere = processes.into_iter().filter(|p| *p != several.mpi.rank);
        several.tell(elsewhere, &letter).map_err(|reason| CommError::Library {
            rank: self.rank,
            call: Some(name.clone()),
            reason,
        })?;
        several.under_way.fetch_add(1, Ordering::Relaxed);
        several.courier.unpark();
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
        Arc::new(Aborter { rank: self.rank, threads, several: self.several.clone() })
    }
}

impl Drop for DeviceTransport {
    fn drop(&mut self) {
        let reason = std::thread::panicking().then_some("its thread panicked");
        let _unreachable = self.several.tell(self.several.others(), &letter::ended(self.rank, reason));
        drop(self.end.take());
        self.several.alive.fetch_sub(1, Ordering::Release);
        self.several.courier.unpark();
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
                let silent = self.several.silent(ANSWER);
                for m in missing.iter_mut().chain(&mut stuck) {
                    m.silent = silent.contains(&m.rank);
                }
                let error = CommError::Timeout { rank, call, waited, missing, stuck };
                self.aborter.abort(&error.to_string());
                error
            }
            CommError::Timeout { .. } | CommError::Aborted { .. } if told => {
                let silent: Vec<usize> = self.several.silent(LAST_ANSWER).into_iter().collect();
                let mut missing = self.aborter.whereabouts(&silent).unwrap_or_default();
                missing.iter_mut().for_each(|m| m.silent = true);
                CommError::Terminated { rank: self.rank, call: self.name.clone(), missing }
            }
            other => other,
        }
    }
}

impl InFlight for Crossing {
    fn complete(&mut self) -> Result<(), CommError> {
        if self.result.is_none() {
            let done = self.inner.as_mut().map_or(Ok(()), InFlight::complete);
            self.result = Some(done.map_err(|e| self.explained(e)));
        }
        self.result.clone().unwrap_or(Ok(()))
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take().filter(|_| self.result.is_none())
            && !std::thread::panicking()
            && !inner.given_up_after(GRACE)
        {
            self.aborter.abort(&format!("it gave up {} before all had come", self.name));
        }
        self.several.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Aborter {
    rank: usize,
    threads: Arc<dyn Abort>,
    several: Arc<Several>,
}

impl Abort for Aborter {
    fn abort(&self, reason: &str) {
        // First here: what the other processes are told comes back by the courier, which knows the process alone.
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

    fn came_to(&self, call: &CallName) {
        self.threads.came_to(call);
    }

    fn whereabouts(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        self.threads.whereabouts(ranks)
    }
}

/// What the courier has to know of an end of everything.
pub(super) fn told(several: &Several) -> Option<Told> {
    if several.mpi.interrupted() {
        return Some(Told::ToEnd);
    }
    let engine = several.mpi.engine_within(Duration::ZERO)?;
    if !engine.letters.is_empty() {
        // One that came meanwhile may name the device.
        return None;
    }
    let (process, reason) = engine.aborted.clone()?;
    let device = several.processes.get(process)?.start;
    Some(Told::Aborted { device, reason })
}
