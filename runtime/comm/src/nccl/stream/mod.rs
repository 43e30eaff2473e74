//! The calls on the streams of a GPU, and who watches over them.
//!
//! All calls of a lane run on one stream in the order in which they were posted, so they end in that order: a number says which
//! have ended. A thread looks at the first of each lane that has not, and ends everything where NCCL reports an error, another
//! rank has aborted, or the time is up. From then on every call fails with the same cause.
//!
//! The time of a collective runs from when its input was there and those before it had ended: time in which this GPU still
//! computed does not count.

mod lanes;
mod recorded;

pub(super) use lanes::CommKey;

use super::abort::{ONLY_TOLD, PATIENCE, abort_all};
use super::api::{CommHandle, IN_PROGRESS, Nccl, Refused, SUCCESS};
use super::device::{DeviceEvent, Gpu, OwnStream, StreamHandle, stream_at};
use super::launch::{Launch, LaunchError};
use crate::call::PostedCall;
use crate::{Abort, AsyncCollective, CallName, CommError, Group, Missing, RecordedCalls};
use lanes::{COLLECTIVES, Lanes, StreamOp};
use meshwright_gpu::driver::DriverError;
use meshwright_sorted::SortedMap;
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
    comms: SortedMap<CommKey, Communicator>,
    lanes: Lanes,
    /// The address of the stream on which the device computes; without it calls are ordered with all work of the context.
    computes_on: Option<u64>,
    recording: Option<Recording>,
    /// The event that stands before the graph that is being launched.
    launching: Option<DeviceEvent>,
    /// Whether graphs use the communicators: NCCL then ends none of them before these graphs are gone.
    has_graphs: bool,
    failure: Option<CommError>,
    closing: bool,
}

/// Calls that are being recorded, and the events that order them.
struct Recording {
    calls: RecordedCalls,
    events: Vec<DeviceEvent>,
}

/// State of a collective.
#[derive(Clone, Copy)]
pub(super) enum CallPlace {
    /// On the stream of that lane, with that number.
    Queued(usize, u64),
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
    pub(super) fn new(
        gpu: Gpu,
        nccl: Nccl,
        (rank, aborter): (usize, Arc<dyn Abort>),
        host_waits: bool,
    ) -> Result<Inner, DriverError> {
        let state = StreamState {
            comms: SortedMap::new(),
            lanes: Lanes::new(gpu.new_stream()?),
            computes_on: None,
            recording: None,
            launching: None,
            has_graphs: false,
            failure: None,
            closing: false,
        };
        Ok(Inner {
            gpu: Arc::new(gpu),
            nccl,
            rank,
            aborter,
            host_waits,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
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

    pub(super) fn has_comm(&self, key: &CommKey) -> bool {
        self.lock().comms.contains_key(key)
    }

    /// Gives the messages of a link a lane.
    pub(super) fn add_lane(&self, link: CommKey) -> Result<(), DriverError> {
        self.gpu.bind()?;
        let stream = self.gpu.new_stream()?;
        self.lock().lanes.add(link, stream);
        Ok(())
    }

    /// See [`Transport::compute_on`](crate::Transport::compute_on).
    pub(super) fn compute_on(&self, stream: u64) {
        self.lock().computes_on = Some(stream);
    }

    /// Makes a communicator by `make`, which may give a null one: either it had begun to make it, and failed, or this rank
    /// gets none. Waits until NCCL is done with `via` (none: the new one itself) and with the new one.
    pub(super) fn make_comm(
        &self,
        key: &CommKey,
        via: Option<&CommKey>,
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
                state.comms.insert(key.clone(), Communicator(unsafe { *place }));
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
            self.lock().comms.insert(key.clone(), Communicator(new));
        }
        self.wait_until_ready(key, group, name, &deadline, function)?;
        #[expect(unsafe_code, reason = "the inverse of `Box::into_raw`")]
        // SAFETY: NCCL is done with it.
        drop(unsafe { Box::from_raw(place) });
        Ok(())
    }

    /// Waits until a communicator is done with what was asked of it.
    fn wait_until_ready(
        &self,
        key: &CommKey,
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
                let Some(comm) = state.comms.get(key).copied() else {
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
        // Messages are counted by link: of a link the other end is told, whatever it does.
        let counts = |at: &CallName| !at.tag.is_message && !name.tag.is_message;
        let behind = |at: &CallName| !counts(at) || at.tag.sequence < name.tag.sequence;
        missing.retain(|m: &Missing| m.unresponsive || m.last_call.as_ref().is_none_or(behind));
        CommError::Timeout { rank: self.rank, call: name.clone(), waited, stuck: missing.clone(), missing }
    }

    /// Puts a call on the stream of its lane, or into the graph that is being recorded. The communicator of the group is there.
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
        let key = CommKey::of_call(group, name);
        let (lane, stream, computes_on) = self.lane(&key);
        if let Some(ready) = ready {
            match computes_on {
                // SAFETY: as whoever named the stream has promised.
                Some(other) => unsafe { self.gpu.after_stream(stream, other, ready) },
                None => self.gpu.after_context(stream, ready),
            }
            .map_err(failed)?;
        }
        {
            let mut state = self.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.seen_from(name));
            }
            let comm = state.comms.get(&key).map(|c| c.0).filter(|_| group.size() > 1);
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
            self.wait_until_ready(&key, group, name, &deadline, "a collective")?;
        }
        self.gpu.record(stream, done).map_err(failed)?;
        let mut state = self.lock();
        if let Some(recording) = &mut state.recording {
            recording.calls.count += 1;
            recording.calls.first.get_or_insert_with(|| name.clone());
            recording.events.extend(ready.into_iter().chain([done]));
            return Ok(CallPlace::Recorded(done));
        }
        let (name, group) = (name.clone(), group.clone());
        let op = StreamOp { name, group, ready, done, runs_since: None, timeout, recorded: None };
        Ok(CallPlace::Queued(lane, self.push(&mut state, lane, op)))
    }

    /// The number and the stream of a lane, and the stream with which its calls are ordered.
    fn lane(&self, key: &CommKey) -> (usize, OwnStream, Option<StreamHandle>) {
        let state = self.lock();
        let (lane, recorded_on) = (state.lanes.number(key), state.recording.as_ref().map(|r| r.calls.stream));
        (lane, state.lanes.at(lane).stream, recorded_on.or(state.computes_on).map(stream_at))
    }

    /// Has a call watched; gives its number on its lane.
    fn push(&self, state: &mut StreamState, lane: usize, op: StreamOp) -> u64 {
        let number = state.lanes.push(lane, op);
        self.changed.notify_all();
        number
    }

    fn event(&self) -> Result<DeviceEvent, DriverError> {
        let spare = self.lock().lanes.spare.pop();
        spare.map_or_else(|| self.gpu.event(), Ok)
    }

    /// Looks which collectives have ended, and what has gone wrong.
    fn look(&self, state: &mut StreamState) {
        if state.failure.is_some() || state.lanes.is_idle() {
            return;
        }
        self.look_for_aborts(state);
        // Errors are asked for after the ends: what an error ended has no result.
        let ended = match state.lanes.count_ended(&self.gpu) {
            Ok(ended) => ended,
            Err(e) => {
                let call = state.lanes.fronts(COLLECTIVES).next().map(|op| op.name.clone());
                return self.fail_locked(state, self.refused(call.as_ref(), e));
            }
        };
        let wrong = state.comms.iter().find_map(|(key, comm)| match self.async_error(*comm) {
            SUCCESS | IN_PROGRESS => None,
            code => Some((state.lanes.number(key), comm.0, code)),
        });
        let front = |lane| state.lanes.fronts(lane).next().map(|op| op.name.clone());
        if let Some((comm, code, name)) =
            wrong.and_then(|(lane, comm, code)| Some((comm, code, front(lane)?)))
        {
            let problem = self.nccl.explain(&Refused { function: "a collective", code }, comm);
            let error = self.refused(Some(&name), problem);
            return self.fail_locked(state, error);
        }
        state.lanes.retire(ended);
        let late = state.lanes.fronts(COLLECTIVES).filter_map(|front| {
            let since = front.runs_since.filter(|since| since.elapsed() > front.timeout)?;
            Some((since, front))
        });
        if let Some((since, front)) = late.min_by_key(|(since, _)| *since) {
            let error = self.timeout(&front.group, &front.name, since.elapsed());
            self.fail_locked(state, error);
        }
    }

    /// Waits on the host until all calls of a lane up to that number have ended (none: all that were posted).
    pub(super) fn wait(&self, until: Option<(usize, u64)>, name: Option<&CallName>) -> Result<(), CommError> {
        let _ = self.gpu.bind();
        let begin = Instant::now();
        loop {
            {
                let mut state = self.lock();
                self.look(&mut state);
                let ended = match until {
                    Some((lane, number)) => state.lanes.at(lane).first > number,
                    None => state.lanes.is_idle(),
                };
                if ended && (until.is_some() || state.failure.is_none()) {
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

    /// Orders later work of the device after a call of a lane.
    fn order_after(&self, (lane, number): (usize, u64), name: &CallName) -> Result<(), CommError> {
        let state = self.lock();
        let Some(done) = state.lanes.at(lane).done(number) else { return Ok(()) };
        if let Some(failure) = &state.failure {
            return Err(failure.seen_from(name));
        }
        // Under the lock: an event that is taken from the queue is used again.
        let waits = self.gpu.bind().and_then(|()| match state.computes_on.map(stream_at) {
            #[expect(unsafe_code, reason = "a stream is known by its address")]
            // SAFETY: as whoever named the stream has promised.
            Some(stream) => unsafe { self.gpu.stream_waits(stream, done) },
            None => self.gpu.context_waits(done),
        });
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
            if state.lanes.is_idle() || state.failure.is_some() {
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
        let mut comms: Vec<(CommKey, Communicator)> = comms.into_iter().collect();
        comms.sort_by_key(|(key, _)| key.size());
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
        let launching = state.launching.take();
        let events: Vec<DeviceEvent> = state.lanes.take_events().into_iter().chain(launching).collect();
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
            CallPlace::Queued(lane, number) if self.inner.host_waits => {
                self.inner.wait(Some((lane, number)), Some(&self.name))
            }
            CallPlace::Queued(lane, number) => self.inner.order_after((lane, number), &self.name),
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
