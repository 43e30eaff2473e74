//! The collectives on the stream of a GPU, and who watches over them.
//!
//! All collectives of a transport run on one stream in the order in which they were posted, so they end in that order: a
//! number says which have ended. A thread looks at the first that has not, and ends everything where NCCL reports an error,
//! another rank has aborted, or the time is up. From then on every call fails with the same cause.
//!
//! The time of a collective runs from when its input was there and those before it had ended: time in which this GPU still
//! computed does not count.

mod recorded;

use super::abort::{ONLY_TOLD, PATIENCE, abort_all};
use super::api::{CommHandle, IN_PROGRESS, Nccl, Refused, SUCCESS};
use super::device::{DeviceEvent, Gpu};
use super::launch::{Launch, LaunchError};
use crate::call::PostedCall;
use crate::{Abort, AsyncCollective, CallName, CommError, Group, Missing, RecordedCalls};
use meshwright_gpu::driver::DriverError;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of the watching thread.
const WATCH: Duration = Duration::from_millis(2);
/// Time for which a wait on the host polls without pause, except for yielding its core; then the interval of polls.
const YIELD: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_micros(50);

/// A communicator.
#[derive(Clone, Copy)]
pub(super) struct Communicator(pub(super) CommHandle);

#[expect(unsafe_code, reason = "used under one lock, by one thread at a time")]
// SAFETY: NCCL allows communicators to be used by different threads one after the other.
unsafe impl Send for Communicator {}

/// State shared by the transport, its handles and the watching thread.
pub(super) struct Inner {
    pub(super) gpu: Arc<Gpu>,
    pub(super) nccl: Nccl,
    pub(super) rank: usize,
    pub(super) aborter: Arc<dyn Abort>,
    /// Whether the host waits, instead of the device.
    pub(super) host_waits: bool,
    state: Mutex<StreamState>,
    changed: Condvar,
}

struct StreamState {
    comms: BTreeMap<Arc<[usize]>, Communicator>,
    queue: VecDeque<StreamOp>,
    /// Number of the first in the queue: all before it have ended.
    first: u64,
    spare: Vec<DeviceEvent>,
    recording: Option<Recording>,
    /// The event that stands before the graph that is being launched.
    launching: Option<DeviceEvent>,
    /// Whether graphs use the communicators: NCCL then ends none of them before these graphs are gone.
    has_graphs: bool,
    failure: Option<CommError>,
    closing: bool,
}

struct StreamOp {
    name: CallName,
    group: Group,
    /// Input is there; none where the host had waited for it.
    ready: Option<DeviceEvent>,
    done: DeviceEvent,
    runs_since: Option<Instant>,
    timeout: Duration,
    /// The recorded calls, if it is a launch of these.
    recorded: Option<RecordedCalls>,
}

/// Calls that are being recorded, and the events that order them.
struct Recording {
    calls: RecordedCalls,
    events: Vec<DeviceEvent>,
}

/// State of a collective.
#[derive(Clone, Copy)]
pub(super) enum CallPlace {
    /// On the stream, with that number.
    Queued(u64),
    /// In the graph that is being recorded; what comes after the event comes after it.
    Recorded(DeviceEvent),
}

/// A time by which something must have happened.
pub(super) struct Deadline {
    begin: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Deadline {
        Deadline { begin: Instant::now(), timeout }
    }
}

impl Inner {
    pub(super) fn new(gpu: Gpu, nccl: Nccl, rank: usize, aborter: Arc<dyn Abort>, host_waits: bool) -> Inner {
        let state = StreamState {
            comms: BTreeMap::new(),
            queue: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
            recording: None,
            launching: None,
            has_graphs: false,
            failure: None,
            closing: false,
        };
        Inner {
            gpu: Arc::new(gpu),
            nccl,
            rank,
            aborter,
            host_waits,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refused(&self, call: Option<&CallName>, reason: impl ToString) -> CommError {
        CommError::Library { rank: self.rank, call: call.cloned(), reason: reason.to_string() }
    }

    fn driver(&self, call: &CallName) -> impl Fn(DriverError) -> CommError {
        move |e| self.refused(Some(call), e)
    }

    /// Whether anything has failed, here or elsewhere.
    pub(super) fn check(&self, name: &CallName) -> Result<(), CommError> {
        let mut state = self.lock();
        self.look_for_aborts(&mut state);
        match &state.failure {
            None => Ok(()),
            Some(failure) => Err(failure.seen_from(name)),
        }
    }

    fn look_for_aborts(&self, state: &mut StreamState) {
        if let (None, Some((rank, reason))) = (&state.failure, self.aborter.aborted()) {
            self.fail_locked(state, CommError::Aborted { rank, reason, call: None });
        }
    }

    /// Ends everything, here and on all ranks; gives the error, or what it is a consequence of.
    pub(super) fn fail(&self, error: CommError) -> CommError {
        let mut state = self.lock();
        self.fail_locked(&mut state, error.clone());
        match &state.failure {
            Some(cause) if error.is_consequence() => cause.clone(),
            _ => error,
        }
    }

    fn fail_locked(&self, state: &mut StreamState, error: CommError) {
        if state.failure.is_some() {
            return;
        }
        // Others learn it before this rank is busy with its own end.
        if !error.is_consequence() {
            self.aborter.abort(&error.to_string());
        }
        state.failure = Some(error);
        self.abort_comms(state);
        self.changed.notify_all();
    }

    fn abort_comms(&self, state: &mut StreamState) {
        // They leave the table with this, so that nobody uses them again.
        let comms = std::mem::take(&mut state.comms);
        let patience = if state.has_graphs { ONLY_TOLD } else { PATIENCE };
        abort_all(comms.into_values().map(|comm| comm.0), patience, &self.gpu, &self.nccl);
    }

    pub(super) fn has_comm(&self, ranks: &[usize]) -> bool {
        self.lock().comms.contains_key(ranks)
    }

    /// Makes a communicator by `make`, which may give a null one: either it had begun to make it, and failed, or this rank
    /// gets none. Waits until NCCL is done with `via` (none: the new one itself) and with the new one.
    pub(super) fn make_comm(
        &self,
        ranks: &Arc<[usize]>,
        via: Option<&[usize]>,
        group: &Group,
        name: &CallName,
        timeout: Duration,
        make: impl FnOnce(Option<CommHandle>, *mut CommHandle) -> i32,
    ) -> Result<(), CommError> {
        self.gpu.bind().map_err(self.driver(name)).map_err(|e| self.fail(e))?;
        let deadline = Deadline::after(timeout);
        // NCCL may write the handle later, from a thread of its own: the place outlives every way out of this function.
        let place: *mut CommHandle = Box::into_raw(Box::new(std::ptr::null_mut()));
        let function = if via.is_some() { "ncclCommSplit" } else { "ncclCommInitRankConfig" };
        {
            let mut state = self.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.seen_from(name));
            }
            let parent = via.and_then(|v| state.comms.get(v)).map(|c| c.0);
            let code = make(parent, place);
            if code != SUCCESS && code != IN_PROGRESS {
                let comm = parent.unwrap_or(std::ptr::null_mut());
                let problem = self.nccl.explain(&Refused { function, code }, comm);
                let error = self.refused(Some(name), problem);
                self.fail_locked(&mut state, error.clone());
                return Err(error);
            }
            if via.is_none() {
                #[expect(unsafe_code, reason = "reads what NCCL wrote")]
                // SAFETY: `ncclCommInitRankConfig` writes the handle before it returns.
                state.comms.insert(ranks.clone(), Communicator(unsafe { *place }));
            }
        }
        if let Some(via) = via {
            self.wait_until_ready(via, group, name, &deadline, function)?;
            #[expect(unsafe_code, reason = "reads what NCCL wrote")]
            // SAFETY: the parent is done, so the handle is written.
            let new = unsafe { *place };
            if new.is_null() {
                let problem = "`ncclCommSplit` of NCCL gave no communicator";
                return Err(self.fail(self.refused(Some(name), problem)));
            }
            self.lock().comms.insert(ranks.clone(), Communicator(new));
        }
        self.wait_until_ready(ranks, group, name, &deadline, function)?;
        #[expect(unsafe_code, reason = "the inverse of `Box::into_raw`")]
        // SAFETY: NCCL is done with it.
        drop(unsafe { Box::from_raw(place) });
        Ok(())
    }

    /// Waits until a communicator is done with what was asked of it.
    fn wait_until_ready(
        &self,
        ranks: &[usize],
        group: &Group,
        name: &CallName,
        deadline: &Deadline,
        function: &'static str,
    ) -> Result<(), CommError> {
        let mut looks = 0u32;
        loop {
            {
                let mut state = self.lock();
                self.look_for_aborts(&mut state);
                if let Some(failure) = &state.failure {
                    return Err(failure.seen_from(name));
                }
                let Some(comm) = state.comms.get(ranks).copied() else {
                    unreachable!("communicators stay until the end or a failure");
                };
                match self.async_error(comm) {
                    SUCCESS => return Ok(()),
                    IN_PROGRESS if deadline.begin.elapsed() < deadline.timeout => {}
                    IN_PROGRESS => {
                        let error = self.timeout(group, name, deadline.begin.elapsed());
                        self.fail_locked(&mut state, error.clone());
                        return Err(error);
                    }
                    code => {
                        let problem = self.nccl.explain(&Refused { function, code }, comm.0);
                        let error = self.refused(Some(name), problem);
                        self.fail_locked(&mut state, error.clone());
                        return Err(error);
                    }
                }
            }
            looks += 1;
            if looks < 50 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    #[expect(unsafe_code, reason = "a function of NCCL")]
    fn async_error(&self, comm: Communicator) -> i32 {
        let mut code = SUCCESS;
        // SAFETY: a communicator of the table, under its lock; writes an integer.
        let asked = unsafe { (self.nccl.f.async_error)(comm.0, &raw mut code) };
        if asked == SUCCESS { code } else { asked }
    }

    fn timeout(&self, group: &Group, name: &CallName, waited: Duration) -> CommError {
        let mut others: Vec<usize> = group.ranks().iter().copied().filter(|r| *r != group.rank()).collect();
        others.sort_unstable();
        let mut missing = self.aborter.last_calls(&others).unwrap_or_default();
        let behind = |at: &CallName| at.tag.sequence < name.tag.sequence;
        missing.retain(|m: &Missing| m.unresponsive || m.last_call.as_ref().is_none_or(behind));
        CommError::Timeout { rank: self.rank, call: name.clone(), waited, stuck: missing.clone(), missing }
    }

    /// Puts a call on the stream, or into the graph that is being recorded. The communicator of the group is there.
    ///
    /// # Safety
    /// The memory of the call is this GPU's. It stays valid, and nobody else's, until the call has ended.
    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    pub(super) unsafe fn launch(
        &self,
        group: &Group,
        name: &CallName,
        call: &PostedCall,
        timeout: Duration,
    ) -> Result<CallPlace, CommError> {
        let deadline = Deadline::after(timeout);
        let failed = |e: DriverError| self.fail(self.refused(Some(name), e));
        self.gpu.bind().map_err(failed)?;
        let ready = if self.host_waits { None } else { Some(self.event().map_err(failed)?) };
        let done = self.event().map_err(failed)?;
        if let Some(ready) = ready {
            match self.recorded_on() {
                // SAFETY: as whoever began to record has promised.
                Some(stream) => unsafe { self.gpu.after_stream(stream, ready) },
                None => self.gpu.after_context(ready),
            }
            .map_err(failed)?;
        }
        {
            let mut state = self.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.seen_from(name));
            }
            let comm = state.comms.get(group.ranks()).map(|c| c.0).filter(|_| group.size() > 1);
            let stream = self.gpu.stream();
            let launch = Launch { f: &self.nccl.f, gpu: &self.gpu, comm, stream, members: group.size() };
            // SAFETY: the caller's promise.
            if let Err(e) = unsafe { launch.run(group, call) } {
                let problem = match e {
                    LaunchError::Driver(e) => e.to_string(),
                    LaunchError::Nccl(r) => self.nccl.explain(&r, comm.unwrap_or(std::ptr::null_mut())),
                };
                let error = self.refused(Some(name), problem);
                self.fail_locked(&mut state, error.clone());
                return Err(error);
            }
        }
        if group.size() > 1 {
            // Work that NCCL has not put on the stream yet would come after `done`.
            self.wait_until_ready(group.ranks(), group, name, &deadline, "a collective")?;
        }
        self.gpu.record(done).map_err(failed)?;
        let mut state = self.lock();
        if let Some(recording) = &mut state.recording {
            recording.calls.count += 1;
            recording.calls.first.get_or_insert_with(|| name.clone());
            recording.events.extend(ready.into_iter().chain([done]));
            return Ok(CallPlace::Recorded(done));
        }
        let (name, group) = (name.clone(), group.clone());
        let op = StreamOp { name, group, ready, done, runs_since: None, timeout, recorded: None };
        Ok(CallPlace::Queued(self.push(&mut state, op)))
    }

    /// Has a collective watched; gives its number.
    fn push(&self, state: &mut StreamState, op: StreamOp) -> u64 {
        state.queue.push_back(op);
        self.changed.notify_all();
        state.first + state.queue.len() as u64 - 1
    }

    fn event(&self) -> Result<DeviceEvent, DriverError> {
        let spare = self.lock().spare.pop();
        spare.map_or_else(|| self.gpu.event(), Ok)
    }

    /// Looks which collectives have ended, and what has gone wrong.
    fn look(&self, state: &mut StreamState) {
        if state.failure.is_some() || state.queue.is_empty() {
            return;
        }
        self.look_for_aborts(state);
        // Errors are asked for after the ends: what an error ended has no result.
        let ended = match self.count_ended(state) {
            Ok(ended) => ended,
            Err(e) => {
                let call = state.queue.front().map(|op| op.name.clone());
                return self.fail_locked(state, self.refused(call.as_ref(), e));
            }
        };
        let wrong = state.comms.values().copied().find_map(|comm| match self.async_error(comm) {
            SUCCESS | IN_PROGRESS => None,
            code => Some((comm, code)),
        });
        if let (Some((comm, code)), Some(front)) = (wrong, state.queue.front()) {
            let problem = self.nccl.explain(&Refused { function: "a collective", code }, comm.0);
            let error = self.refused(Some(&front.name), problem);
            return self.fail_locked(state, error);
        }
        for op in state.queue.drain(..ended) {
            if let (Some(calls), Some(since)) = (&op.recorded, op.runs_since) {
                calls.took(since.elapsed());
            }
            state.spare.extend(op.ready);
            state.spare.push(op.done);
            state.first += 1;
        }
        let Some(front) = state.queue.front() else { return };
        if let Some(since) = front.runs_since.filter(|since| since.elapsed() > front.timeout) {
            let error = self.timeout(&front.group, &front.name, since.elapsed());
            self.fail_locked(state, error);
        }
    }

    /// Number of collectives at the front that have ended. The next one runs from now on, if its input is there.
    fn count_ended(&self, state: &mut StreamState) -> Result<usize, DriverError> {
        let mut ended = 0;
        for op in &mut state.queue {
            if self.gpu.is_done(op.done)? {
                ended += 1;
                continue;
            }
            if op.runs_since.is_none() && op.ready.map_or(Ok(true), |ready| self.gpu.is_done(ready))? {
                op.runs_since = Some(Instant::now());
            }
            break;
        }
        Ok(ended)
    }

    /// Waits on the host until all collectives before number `end` have ended (none: all that were posted).
    pub(super) fn wait(&self, end: Option<u64>, name: Option<&CallName>) -> Result<(), CommError> {
        let _ = self.gpu.bind();
        let begin = Instant::now();
        loop {
            {
                let mut state = self.lock();
                self.look(&mut state);
                let ended = match end {
                    Some(end) => state.first >= end,
                    None => state.queue.is_empty(),
                };
                if ended && (end.is_some() || state.failure.is_none()) {
                    return Ok(());
                }
                if let Some(failure) = &state.failure {
                    return Err(name.map_or_else(|| failure.clone(), |name| failure.seen_from(name)));
                }
            }
            if begin.elapsed() < YIELD {
                std::thread::yield_now();
            } else {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Orders later work of the device after collective `number`.
    fn order_after(&self, number: u64, name: &CallName) -> Result<(), CommError> {
        let state = self.lock();
        if number < state.first {
            return Ok(());
        }
        if let Some(failure) = &state.failure {
            return Err(failure.seen_from(name));
        }
        let done = state.queue[(number - state.first) as usize].done;
        // Under the lock: an event that is taken from the queue is used again.
        let waits = self.gpu.bind().and_then(|()| self.gpu.context_waits(done));
        drop(state);
        waits.map_err(|e| self.fail(self.refused(Some(name), e)))
    }

    /// The watching thread.
    pub(super) fn watch(&self) {
        let _ = self.gpu.bind();
        let mut state = self.lock();
        loop {
            if state.closing {
                return;
            }
            if state.queue.is_empty() || state.failure.is_some() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            self.look(&mut state);
            let (next, _) = self.changed.wait_timeout(state, WATCH).unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }

    /// Ends the watching thread.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Frees the communicators: in good order where all that was posted has ended, else by aborting them.
    pub(super) fn free_comms(&self, in_order: bool, patience: Duration) {
        let _ = self.gpu.bind();
        let mut state = self.lock();
        let comms = std::mem::take(&mut state.comms);
        drop(state);
        let begin = Instant::now();
        // Small groups first, in the same order on all ranks: those split from the world's go before it.
        let mut comms: Vec<(Arc<[usize]>, Communicator)> = comms.into_iter().collect();
        comms.sort_by_key(|(ranks, _)| ranks.len());
        let mut comms = comms.into_iter().map(|(_, comm)| comm);
        while in_order && let Some(comm) = comms.next() {
            if !self.free(comm, begin, patience) {
                // The rest has no better prospects.
                let rest = std::iter::once(comm).chain(comms).map(|comm| comm.0);
                return abort_all(rest, PATIENCE, &self.gpu, &self.nccl);
            }
        }
        abort_all(comms.map(|comm| comm.0), PATIENCE, &self.gpu, &self.nccl);
    }

    /// Frees a communicator in good order; whether that went well.
    #[expect(unsafe_code, reason = "frees a communicator")]
    fn free(&self, comm: Communicator, begin: Instant, patience: Duration) -> bool {
        // SAFETY: it has left the table, so nobody else uses it.
        let code = unsafe { (self.nccl.f.finalize)(comm.0) };
        let mut good = code == SUCCESS || code == IN_PROGRESS;
        while good && self.async_error(comm) == IN_PROGRESS {
            good = begin.elapsed() < patience;
            std::thread::sleep(LOOK);
        }
        // SAFETY: as above.
        good && unsafe { (self.nccl.f.destroy)(comm.0) } == SUCCESS
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        let mut state = self.lock();
        let queue = std::mem::take(&mut state.queue);
        let left = queue.into_iter().flat_map(|op| op.ready.into_iter().chain([op.done]));
        let left = left.chain(state.launching.take());
        let events: Vec<DeviceEvent> = left.chain(std::mem::take(&mut state.spare)).collect();
        drop(state);
        events.into_iter().for_each(|event| self.gpu.destroy_event(event));
    }
}

/// A collective that was posted.
pub(super) struct OnStream {
    pub(super) inner: Arc<Inner>,
    pub(super) place: CallPlace,
    pub(super) name: CallName,
    pub(super) result: Option<Result<(), CommError>>,
}

impl AsyncCollective for OnStream {
    fn wait(&mut self) -> Result<(), CommError> {
        if let Some(known) = &self.result {
            return known.clone();
        }
        let result = match self.place {
            CallPlace::Recorded(done) => self.inner.record_after(done, &self.name),
            CallPlace::Queued(number) if self.inner.host_waits => {
                self.inner.wait(Some(number + 1), Some(&self.name))
            }
            CallPlace::Queued(number) => self.inner.order_after(number, &self.name),
        };
        self.result.insert(result).clone()
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        // Work on the stream cannot be cancelled: it runs, and its memory is not used afterwards.
        let _ = self.wait();
    }
}
