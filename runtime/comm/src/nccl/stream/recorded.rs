//! Collectives in a graph: recorded with what the stream of another computes, and launched with it.

use super::lanes::{COLLECTIVES, StreamOp};
use super::{Inner, Recording};
use crate::nccl::device::{DeviceEvent, StreamHandle, stream_at};
use crate::{CallName, CommError, Group, RecordedCalls};
use meshwright_gpu::driver::DriverError;
use std::time::Duration;

impl Inner {
    /// The stream on which a graph is recorded.
    pub(super) fn recorded_on(&self) -> Option<StreamHandle> {
        let state = self.lock();
        state.recording.as_ref().map(|recording| stream_at(recording.calls.stream))
    }

    pub(in crate::nccl) fn start_recording(&self, stream: u64) {
        let calls = RecordedCalls { stream, ..RecordedCalls::default() };
        let mut state = self.lock();
        state.has_graphs = true;
        state.recording = Some(Recording { calls, events: vec![] });
    }

    pub(in crate::nccl) fn is_recording(&self) -> bool {
        self.lock().recording.is_some()
    }

    pub(in crate::nccl) fn finish_recording(&self) -> RecordedCalls {
        let mut state = self.lock();
        let Some(Recording { calls, events }) = state.recording.take() else {
            return RecordedCalls::default();
        };
        // An event may be recorded anew, in whatever order.
        state.lanes.spare.extend(events);
        calls
    }

    /// What was recorded is put on its stream next: from when it is done with all before, that takes time.
    pub(in crate::nccl) fn before_launch(
        &self,
        calls: &RecordedCalls,
        name: &CallName,
    ) -> Result<(), CommError> {
        let ready = self.recorded_event(calls).map_err(self.driver(name)).map_err(|e| self.fail(e))?;
        self.lock().launching = Some(ready);
        Ok(())
    }

    /// What was recorded is on its stream.
    pub(in crate::nccl) fn after_launch(
        &self,
        calls: &RecordedCalls,
        name: CallName,
        group: Group,
        timeout: Duration,
    ) -> Result<(), CommError> {
        let done = self.recorded_event(calls).map_err(self.driver(&name)).map_err(|e| self.fail(e))?;
        let mut state = self.lock();
        let (ready, recorded) = (state.launching.take(), Some(calls.clone()));
        self.push(
            &mut state,
            COLLECTIVES,
            StreamOp { name, group, ready, done, runs_since: None, timeout, recorded },
        );
        Ok(())
    }

    /// An event that is done when all is that the stream of recorded calls has now.
    fn recorded_event(&self, calls: &RecordedCalls) -> Result<DeviceEvent, DriverError> {
        self.gpu.bind()?;
        let event = self.event()?;
        #[expect(unsafe_code, reason = "a stream is known by its address")]
        // SAFETY: as whoever began to record has promised.
        unsafe { self.gpu.record_on(stream_at(calls.stream), event) }?;
        Ok(event)
    }

    /// What is recorded from now on comes after an event; nothing does where nothing is recorded any more.
    pub(super) fn record_after(&self, done: DeviceEvent, name: &CallName) -> Result<(), CommError> {
        let Some(stream) = self.recorded_on() else { return Ok(()) };
        #[expect(unsafe_code, reason = "a stream is known by its address")]
        // SAFETY: as whoever began to record has promised.
        let waits = self.gpu.bind().and_then(|()| unsafe { self.gpu.stream_waits(stream, done) });
        waits.map_err(|e| self.fail(self.refused(Some(name), e)))
    }
}
