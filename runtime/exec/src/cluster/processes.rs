//! The processes of a mesh, and their messages besides the program's collectives: small values in a fixed order, each a
//! collective with one member a process.
//!
//! **Invariant:** a decision that depends on messages is the same on all processes: every method that communicates
//! gives the same on all of them, or ends the job.

use crate::cluster::shared_end::shared;
use crate::error::{ExecError, Place};
use meshwright_comm::{
    Abort, Buf, BufMut, CallName, CollectiveKind, Collectives, CommError, Group, Missing, Tag, Transport,
    wire,
};
use meshwright_plan::Monoid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Subject of a message: a name for the user, and a line of the model file (0 if there is none).
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The name.
    pub what: &'a str,
    /// The line, from 1.
    pub line: u32,
}

impl<'a> From<&'a str> for About<'a> {
    fn from(what: &'a str) -> Self {
        About { what, line: 0 }
    }
}

/// This process among the processes of a mesh: its devices' ends of the transport, and a transport between processes.
pub struct Processes {
    wire: Option<Wire>,
    /// This process's ends, for a cluster.
    ends: Mutex<DeviceEnds>,
    /// The devices of each process.
    ranks: Vec<Range<usize>>,
    /// Host and cores of each process.
    homes: Vec<ProcessHome>,
    agreed_to_end: AtomicBool,
    first_step_done: AtomicBool,
}

/// The ends of a process's devices.
enum DeviceEnds {
    /// Until a cluster takes them.
    Own(Option<Vec<Box<dyn Transport>>>),
    /// The end of the only device, lent to one cluster at a time; `None` while it is lent, unless sharing is allowed.
    Shared(Box<dyn Fn(bool) -> Option<Box<dyn Transport>> + Send>),
}

struct Wire {
    count: usize,
    position: usize,
    rank: usize,
    aborters: Vec<Arc<dyn Abort>>,
    line: Mutex<WireEnd>,
}

struct WireEnd {
    transport: Box<dyn Transport>,
    group: Group,
    sequence: u64,
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = &self.ranks;
        f.debug_struct("Processes").field("position", &self.position()).field("ranks", ranks).finish()
    }
}

/// The times after which a process that the others wait for sends its first heartbeat, and each later one at the latest.
const FIRST_HEARTBEAT: Duration = Duration::from_millis(20);
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Self-description of a process.
#[derive(Clone, Serialize, Deserialize)]
struct Introduction {
    /// Its devices; none if they are not contiguous.
    devices: Range<usize>,
    home: ProcessHome,
}

/// Host and cores of a process. Processes with equal homes share their cores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessHome {
    /// Name of its host.
    pub host: String,
    /// The cores that it may use there, as the system lists them: `0-3,8`.
    pub cores: String,
}

impl ProcessHome {
    /// The home of this process.
    pub fn here() -> ProcessHome {
        ProcessHome { host: read("/proc/sys/kernel/hostname").trim().into(), cores: allowed_cores() }
    }
}

impl Processes {
    /// One process, with all devices of any mesh as threads.
    pub fn alone() -> Processes {
        Processes {
            wire: None,
            ends: Mutex::new(DeviceEnds::Own(None)),
            ranks: vec![],
            homes: vec![],
            agreed_to_end: AtomicBool::new(false),
            first_step_done: AtomicBool::new(false),
        }
    }

    /// One of several processes. `ends` are its devices, in ascending and contiguous rank. `wire` is the transport
    /// between processes; the members of `group`, one for each process in the order of their devices, are ranks of
    /// `wire`.
    ///
    /// # Errors
    ///
    /// If a process does not connect, or the devices of all processes are not numbered from 0 without gaps.
    pub fn connected(
        ends: Vec<Box<dyn Transport>>,
        wire: Box<dyn Transport>,
        group: Group,
    ) -> Result<Processes, ExecError> {
        let first = ends.first().map_or(0, |e| e.rank());
        let contiguous = ends.iter().enumerate().all(|(i, e)| e.rank() == first + i);
        let mut aborters: Vec<Arc<dyn Abort>> = ends.iter().map(|e| e.aborter()).collect();
        aborters.push(wire.aborter());
        let devices = ends.len();
        let wire = Wire {
            count: group.size(),
            position: group.position(),
            rank: first,
            aborters,
            line: Mutex::new(WireEnd { transport: wire, group, sequence: 0 }),
        };
        let mut processes = Processes {
            wire: Some(wire),
            ends: Mutex::new(DeviceEnds::Own(Some(ends))),
            ranks: vec![],
            homes: vec![],
            agreed_to_end: AtomicBool::new(false),
            first_step_done: AtomicBool::new(false),
        };
        let devices = if contiguous { first..first + devices } else { first..first };
        let mine = Introduction { devices, home: ProcessHome::here() };
        let all = processes.gather("the devices of each process".into(), &mine)?;
        for Introduction { devices, home } in all {
            processes.homes.push(home);
            let next = processes.ranks.last().map_or(0, |ranks| ranks.end);
            if devices.start != next || devices.is_empty() {
                let problem = "the devices of the processes are not numbered one after the other".to_string();
                return Err(ExecError::Start { rank: processes.rank(), message: problem });
            }
            processes.ranks.push(devices);
        }
        Ok(processes)
    }

    /// One of several processes that are a device each: `end` is its device's end and the wire both.
    ///
    /// # Errors
    ///
    /// The errors of [`Processes::connected`].
    pub fn of_one_device_each(end: impl Transport + 'static) -> Result<Processes, ExecError> {
        let (size, rank) = (end.size(), end.rank());
        let failed = |message: String| ExecError::Start { rank, message };
        let group = Group::world(size, rank).map_err(|e| failed(e.to_string()))?;
        let (device, wire) = shared(end);
        let lent = device.lent();
        let mut processes = Processes::connected(vec![Box::new(device)], Box::new(wire), group)?;
        processes.ends = Mutex::new(DeviceEnds::Shared(Box::new(lent)));
        Ok(processes)
    }

    /// Number of processes.
    pub fn count(&self) -> usize {
        self.wire.as_ref().map_or(1, |w| w.count)
    }

    /// Number of devices of all processes; none where they are as many as a mesh asks for.
    pub fn devices(&self) -> Option<usize> {
        self.ranks.last().map(|r| r.end)
    }

    /// This process, by order of its devices.
    pub fn position(&self) -> usize {
        self.wire.as_ref().map_or(0, |w| w.position)
    }

    /// Whether it is the first process, which writes files and messages for all.
    pub fn is_first(&self) -> bool {
        self.position() == 0
    }

    /// The first device of this process, which errors call it by.
    pub fn rank(&self) -> usize {
        self.wire.as_ref().map_or(0, |w| w.rank)
    }

    /// The devices of each process, in ascending rank; none for [`Processes::alone`].
    pub fn ranks(&self) -> &[Range<usize>] {
        &self.ranks
    }

    /// Number of processes on this one's cores, itself included.
    pub fn neighbors(&self) -> usize {
        let mine = self.homes.get(self.position());
        self.homes.iter().filter(|other| Some(*other) == mine).count().max(1)
    }

    /// Host and cores of each process, in order; empty for [`Processes::alone`].
    pub fn homes(&self) -> &[ProcessHome] {
        &self.homes
    }

    /// This process's ends of the transport of devices. The ends of several devices are given once. The end of a single device is
    /// given while no other cluster has it; with `beside`, also then: the caller runs these clusters one after the other, in the
    /// same order on all processes.
    pub fn take_ends(&self, beside: bool) -> Option<Vec<Box<dyn Transport>>> {
        match &mut *self.ends.lock().unwrap_or_else(PoisonError::into_inner) {
            DeviceEnds::Own(ends) => ends.take(),
            DeviceEnds::Shared(lent) => lent(beside).map(|end| vec![end]),
        }
    }

    /// Ends all processes, and says why. Does nothing where all have agreed to end, or there is but one.
    pub fn abort(&self, reason: &str) {
        if self.agreed_to_end.load(Ordering::Relaxed) {
            return;
        }
        for aborter in self.wire.iter().flat_map(|w| &w.aborters) {
            aborter.abort(reason);
        }
    }

    /// Notes that all processes know of the job's end: no abort is needed any more.
    pub fn agree_to_end(&self) {
        self.agreed_to_end.store(true, Ordering::Relaxed);
    }

    /// Whether all processes know of the job's end.
    pub fn agreed(&self) -> bool {
        self.agreed_to_end.load(Ordering::Relaxed)
    }

    /// The devices have done their first step, which may take longer: from here on the wire too waits as in later ones. All
    /// processes come to this between the same messages.
    pub(crate) fn first_step_done(&self) {
        if let Some(wire) = self.wire.as_ref().filter(|_| !self.first_step_done.swap(true, Ordering::Relaxed))
        {
            wire.line.lock().unwrap_or_else(PoisonError::into_inner).transport.first_step_done();
        }
    }

    fn call<T>(
        &self,
        about: About,
        call: impl FnOnce(&mut dyn Transport, &Group, &Tag) -> Result<T, CommError>,
    ) -> Option<Result<T, ExecError>> {
        let wire = self.wire.as_ref()?;
        let mut line = wire.line.lock().unwrap_or_else(PoisonError::into_inner);
        let WireEnd { transport, group, sequence } = &mut *line;
        *sequence += 1;
        let tag = Tag::new(*sequence, about.what, about.line);
        let result = call(&mut **transport, group, &tag);
        Some(result.map_err(|source| self.failed(source)))
    }

    /// An error between processes, whose ranks are theirs, with the ranks of devices where a process has several: one error never
    /// counts in two ways.
    fn by_devices(&self, error: CommError) -> CommError {
        if self.ranks().iter().all(|devices| devices.len() <= 1) {
            return error;
        }
        let first = |process: usize| self.ranks().get(process).map_or(process, |devices| devices.start);
        let named = |all: Vec<Missing>| -> Vec<Missing> {
            let one = |m: Missing| Missing { rank: first(m.rank), process: Some(m.rank), ..m };
            all.into_iter().map(one).collect()
        };
        match error {
            CommError::Timeout { rank, call, waited, missing, stuck } => {
                let (missing, stuck) = (named(missing), named(stuck));
                CommError::Timeout { rank: first(rank), call, waited, missing, stuck }
            }
            CommError::Terminated { rank, call, missing } => {
                CommError::Terminated { rank: first(rank), call, missing: named(missing) }
            }
            CommError::Aborted { rank, reason, call } => {
                CommError::Aborted { rank: first(rank), reason, call }
            }
            other => other,
        }
    }

    /// An error between processes, which ends all of them.
    fn failed(&self, source: CommError) -> ExecError {
        let source = self.by_devices(source);
        let place = Box::new(Place { rank: self.rank(), ..Place::default() });
        let error = ExecError::Comm { place, source };
        self.abort(&error.to_string());
        error
    }

    /// A value of each process, in order.
    pub fn gather<T>(&self, about: About, mine: &T) -> Result<Vec<T>, ExecError>
    where
        T: Serialize + DeserializeOwned + Clone,
    {
        let done = self.call(about, |transport, group, tag| transport.gather_values(group, tag, mine));
        done.unwrap_or_else(|| Ok(vec![mine.clone()]))
    }

    /// For each of some questions whether any process says yes.
    pub fn any<const N: usize>(&self, about: About, mine: [bool; N]) -> Result<[bool; N], ExecError> {
        let mut truth = mine.map(u8::from);
        let done = self.call(about, |transport, group, tag| {
            transport.all_reduce(group, tag, Monoid::Or, [BufMut::truth(&mut truth)])
        });
        done.unwrap_or(Ok(())).map(|()| truth.map(|t| t != 0))
    }

    /// The bytes of all processes, one after the other; `lengths`, which all know, has a number for each process.
    pub fn gather_bytes(&self, about: About, mine: &[u8], lengths: &[usize]) -> Result<Vec<u8>, ExecError> {
        let mut all = vec![0; lengths.iter().sum()];
        let done = self.call(about, |transport, group, tag| {
            transport.all_gather_v(group, tag, Buf::new(mine), lengths, BufMut::new(&mut all))
        });
        match done {
            Some(done) => done.map(|()| all),
            None => Ok(mine.to_vec()),
        }
    }

    /// As [`Processes::gather_bytes`], for the first process alone: the others get nothing.
    pub fn collect_bytes(&self, about: About, mine: &[u8], lengths: &[usize]) -> Result<Vec<u8>, ExecError> {
        let first = self.is_first();
        let mut send = vec![0; self.count()];
        send[0] = mine.len();
        let receive = if first { lengths.to_vec() } else { vec![0; self.count()] };
        let mut all = vec![0; receive.iter().sum()];
        let done = self.call(about, |transport, group, tag| {
            transport.all_to_all_v(group, tag, (Buf::new(mine), send), (BufMut::new(&mut all), receive))
        });
        match done {
            Some(done) => done.map(|()| all),
            None => Ok(mine.to_vec()),
        }
    }

    /// The value of the first process, on all. What the others give does not matter.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, about: About, mine: T) -> Result<T, ExecError> {
        if self.wire.is_none() {
            return Ok(mine);
        }
        let bytes =
            self.broadcast_bytes(about, if self.is_first() { wire::encode(&mine) } else { vec![] })?;
        if self.is_first() {
            return Ok(mine);
        }
        wire::decode(&bytes).map_err(|problem| {
            let call = CallName::new(CollectiveKind::Broadcast, &Tag::new(0, about.what, about.line));
            self.failed(CommError::Malformed { rank: self.rank(), from: 0, call, problem })
        })
    }

    /// The bytes of the first process, on all. What the others give does not matter.
    pub fn broadcast_bytes(&self, about: About, bytes: Vec<u8>) -> Result<Vec<u8>, ExecError> {
        let mut length = [bytes.len() as u64];
        let told = self.call(about, |transport, group, tag| {
            let length = bytemuck::cast_slice_mut::<u64, u8>(&mut length);
            transport.broadcast(group, tag, 0, BufMut::new(length))
        });
        let Some(told) = told else { return Ok(bytes) };
        told?;
        let mut all = if self.is_first() { bytes } else { vec![0; length[0] as usize] };
        let done = self
            .call(about, |transport, group, tag| transport.broadcast(group, tag, 0, BufMut::new(&mut all)));
        done.unwrap_or(Ok(())).map(|()| all)
    }

    /// Waits until all processes have come.
    pub fn wait_for_all(&self, about: About) -> Result<(), ExecError> {
        self.call(about, |transport, group, tag| transport.barrier(group, tag)).unwrap_or(Ok(()))
    }

    /// The result of `work` on the first process, none on the others, which wait without a timeout, since the first
    /// sends heartbeats.
    pub fn on_first<T: Send>(
        &self,
        about: About,
        work: impl FnOnce() -> T + Send,
    ) -> Result<Option<T>, ExecError> {
        if self.wire.is_none() {
            return Ok(Some(work()));
        }
        let heartbeat = |busy: bool| {
            let mut truth = [u8::from(busy)];
            let told = self.call(about, |transport, group, tag| {
                transport.broadcast(group, tag, 0, BufMut::truth(&mut truth))
            });
            told.unwrap_or(Ok(())).map(|()| truth[0] != 0)
        };
        let mut pause = FIRST_HEARTBEAT;
        let mut next = || {
            let now = pause;
            pause = (now * 2).min(HEARTBEAT);
            now
        };
        if !self.is_first() {
            while heartbeat(false)? {
                // Waiting for a message polls. Until the next one is due, this process leaves the core to the first process.
                std::thread::sleep(next() * 7 / 8);
            }
            return Ok(None);
        }
        std::thread::scope(|scope| {
            let (done, wait) = channel();
            let worker = scope.spawn(move || {
                let value = work();
                // Whoever waited is gone only after an error, which ends the job.
                let _ = done.send(());
                value
            });
            while let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(next()) {
                heartbeat(true)?;
            }
            match worker.join() {
                Ok(value) => {
                    heartbeat(false)?;
                    Ok(Some(value))
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Default for Processes {
    fn default() -> Self {
        Processes::alone()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("an internal error");
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The cores that this process may use, as the system lists them.
fn allowed_cores() -> String {
    let status = read("/proc/self/status");
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_string()
}
