//! What the devices of a process share that has several.

use crate::channel::Received;
use crate::message::{DeviceMessage, Header, Message};
use crate::shared_engine::SharedEngine;
use crate::wait::ask;
use meshwright_comm::parts::PostedCall;
use meshwright_comm::{Tag, wire};
use meshwright_sorted::SortedSet;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::Thread;
use std::time::Duration;

pub(super) struct Several {
    pub(super) mpi: Arc<SharedEngine>,
    /// The devices of each process.
    pub(super) processes: Vec<Range<usize>>,
    /// Ends of this process that are not dropped.
    pub(super) alive: AtomicUsize,
    /// Collectives of this process's devices with members elsewhere that are under way.
    pub(super) under_way: AtomicUsize,
    pub(super) proxy: Thread,
}

/// The end of everything, as MPI tells it.
pub(super) enum Told {
    /// This process was asked to terminate.
    ToTerminate,
    /// Another process has ended all, for that device.
    Aborted { device: usize, reason: String },
}

/// What a member sends, the inputs one after the other.
///
/// # Safety
/// The memory of the call is valid, and nobody writes to what it reads meanwhile.
#[expect(unsafe_code, reason = "reads the memory of a call")]
pub(super) unsafe fn payload(call: &PostedCall, position: usize) -> Vec<u8> {
    let mut all = Vec::new();
    if call.signature.sends(position) {
        for (memory, bytes) in call.memory.iter().zip(call.signature.input_bytes()) {
            // SAFETY: the caller's promise; where there are no bytes, the address is aligned and not null.
            all.extend_from_slice(unsafe { std::slice::from_raw_parts(memory.source, bytes) });
        }
    }
    all
}

impl Several {
    pub(super) fn process(&self, device: usize) -> usize {
        self.processes.partition_point(|devices| devices.end <= device)
    }

    /// Tells other processes of a device's call, with what it sends.
    ///
    /// # Safety
    /// As [`payload`].
    #[expect(unsafe_code, reason = "reads the memory of a call")]
    pub(super) unsafe fn tell_call(
        &self,
        processes: impl IntoIterator<Item = usize>,
        (device, members): (usize, &Arc<[usize]>),
        tag: &Tag,
        call: &PostedCall,
    ) -> Result<(), String> {
        let header = Header { tag: tag.clone(), signature: call.signature.clone() };
        let members = members.clone();
        let position = members.iter().position(|m| *m == device).unwrap_or(0);
        let message = Message::Device(DeviceMessage::Entered { device, members, header });
        let mut bytes = wire::encode(&message);
        // SAFETY: the caller's promise.
        bytes.extend(unsafe { payload(call, position) });
        let bytes = Arc::new(bytes);
        let mut engine = self.mpi.engine();
        processes.into_iter().try_for_each(|process| engine.send_bytes(process, &bytes))
    }

    /// Tells all other processes that a device enters no further collective; with a reason, that everything ends.
    pub(super) fn tell_end(&self, device: usize, reason: Option<&str>) {
        let reason = reason.map(str::to_string);
        self.mpi.engine().tell_all(&Message::Device(DeviceMessage::Ended { device, reason }));
    }

    /// Ends all other processes for a device of this one.
    pub(super) fn abort(&self, device: usize, reason: &str) {
        if let Some(mut engine) = self.mpi.engine_within(Duration::from_secs(2)) {
            let ended = DeviceMessage::Ended { device, reason: Some(reason.into()) };
            engine.tell_all(&Message::Device(ended));
            // Whoever has no devices any more is told by this.
            engine.abort(self.mpi.rank, reason);
            self.mpi.flush(&mut engine);
        }
    }

    /// The devices of the processes that do not answer.
    pub(super) fn unresponsive(&self, most: Duration) -> SortedSet<usize> {
        let asked = ask::<()>(&self.mpi, most, |_| None);
        let processes = asked.map(|world| world.unresponsive()).unwrap_or_default();
        processes.into_iter().flat_map(|p| self.processes[p].clone()).collect()
    }

    /// The messages for devices that have come.
    pub(super) fn device_messages(&self) -> VecDeque<Received> {
        let mut engine = self.mpi.engine();
        // An error is noted in the engine, and told by `told`.
        let _noted = engine.step(None);
        std::mem::take(&mut engine.device_messages)
    }

    /// What devices have to know of an end of everything.
    pub(super) fn told(&self) -> Option<Told> {
        if self.mpi.interrupted() {
            return Some(Told::ToTerminate);
        }
        let engine = self.mpi.engine_within(Duration::ZERO)?;
        if !engine.device_messages.is_empty() {
            // One that came meanwhile may name the device.
            return None;
        }
        let (process, reason) = engine.aborted.clone()?;
        let device = self.processes.get(process)?.start;
        Some(Told::Aborted { device, reason })
    }
}
