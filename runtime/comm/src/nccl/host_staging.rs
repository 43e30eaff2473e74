//! Host memory through GPUs: every call is copied to the GPU, run by NCCL, and copied back.

use super::memory::DeviceMemory;
use super::transport::NcclTransport;
use crate::{
    Abort, AsyncCollective, Call, CommError, Group, MemorySpace, Slot, Tag, Transport, TransportMemory,
};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::sync::Arc;

/// An [`NcclTransport`] that takes calls on host memory to its GPU. So whatever runs on a transport of the host runs on
/// NCCL, and can be compared. Folds that NCCL lacks go over the control plane.
pub struct Staged(pub NcclTransport);

/// Memory of the host that takes a result.
struct ReceivedPart {
    address: *mut u8,
    bytes: usize,
    from: usize,
}

struct StagedCollective {
    inner: Box<dyn AsyncCollective>,
    memory: Vec<DeviceMemory>,
    targets: Vec<ReceivedPart>,
    result: Option<Result<(), CommError>>,
}

#[expect(unsafe_code, reason = "addresses of a call's memory")]
// SAFETY: the memory is the call's until it ends, whoever ends it.
unsafe impl Send for StagedCollective {}

#[expect(unsafe_code, reason = "copies memory that the call was given")]
impl Staged {
    /// The call on memory of the GPU, which holds what the host has.
    ///
    /// # Safety
    /// The memory of `call` is valid, and nobody writes to it now.
    unsafe fn lift(
        &self,
        memory: &mut Vec<DeviceMemory>,
        targets: &mut Vec<ReceivedPart>,
        mut call: Call<'_>,
    ) -> Result<Call<'static>, CommError> {
        let mut up = |from: *const u8, len: usize, dtype: DType| -> Result<usize, CommError> {
            let mut there = self.0.memory(len, dtype)?;
            if len > 0 {
                // SAFETY: the caller's promise.
                there.write(unsafe { std::slice::from_raw_parts(from, len * dtype.bytes()) })?;
            }
            memory.push(there);
            Ok(memory.len() - 1)
        };
        let mut places = Vec::with_capacity(call.slots.len());
        for slot in &mut call.slots {
            let input = match slot {
                Slot::InPlace(_) => None,
                Slot::Apart(input, _) => Some(up(input.as_ptr(), input.len(), input.dtype())?),
            };
            let output = slot.output();
            let (address, len, dtype) = (output.as_mut_ptr(), output.len(), output.dtype());
            let from = up(address.cast_const(), len, dtype)?;
            targets.push(ReceivedPart { address, bytes: len * dtype.bytes(), from });
            places.push((input, from));
        }
        let slots = places.into_iter().map(|(input, output)| {
            let there = memory[output].result();
            match input {
                None => Slot::InPlace(there),
                Some(input) => Slot::Apart(memory[input].input(), there),
            }
        });
        let slots = slots.collect();
        let Call { kind, monoid, root, send, receive, .. } = call;
        Ok(Call { kind, monoid, root, send, receive, slots })
    }
}

impl Transport for Staged {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError> {
        let there = MemorySpace::Device(self.0.ordinal());
        let folds = |slot: &Slot<'_>| call.monoid.is_none_or(|m| self.0.folds(m, slot.dtype(), there));
        let lifts = !call.slots.is_empty() && call.slots.iter().all(folds);
        if !lifts || call.place(group, tag)? != Some(MemorySpace::Host) {
            // SAFETY: the caller's promise.
            return unsafe { self.0.post(group, tag, call) };
        }
        let (mut memory, mut targets) = (Vec::new(), Vec::new());
        // SAFETY: the caller's promise.
        let lifted = unsafe { self.lift(&mut memory, &mut targets, call) }?;
        // SAFETY: memory of the GPU that the handle keeps until the call has ended.
        let inner = unsafe { self.0.post(group, tag, lifted) }?;
        Ok(Box::new(StagedCollective { inner, memory, targets, result: None }))
    }

    fn first_step_done(&mut self) {
        self.0.first_step_done();
    }

    fn prepare(&mut self, mesh: &Mesh, sets: &[Vec<Axis>]) -> Result<(), CommError> {
        self.0.prepare(mesh, sets)
    }

    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        self.0.prepare_links(links)
    }

    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn compute_on(&mut self, stream: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.0.compute_on(stream) }
    }

    fn folds(&self, monoid: Monoid, dtype: DType, place: MemorySpace) -> bool {
        self.0.folds(monoid, dtype, place)
    }

    fn settle(&mut self) -> Result<(), CommError> {
        self.0.settle()
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.aborter()
    }
}

impl AsyncCollective for StagedCollective {
    fn wait(&mut self) -> Result<(), CommError> {
        if let Some(known) = &self.result {
            return known.clone();
        }
        let mut result = self.inner.wait();
        for ReceivedPart { address, bytes, from } in std::mem::take(&mut self.targets) {
            if result.is_ok() && bytes > 0 {
                #[expect(unsafe_code, reason = "writes the result of a call")]
                // SAFETY: whoever posted keeps the memory valid, and away from others, until this has returned.
                let to = unsafe { std::slice::from_raw_parts_mut(address, bytes) };
                result = self.memory[from].read(to);
            }
        }
        self.result.insert(result).clone()
    }
}
