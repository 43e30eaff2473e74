//! Host memory through GPUs: every call is copied to the GPU, run by NCCL, and copied back.

use super::{DeviceMemory, NcclTransport};
use crate::{Abort, Buf, BufMut, Call, CommError, Group, InFlight, Memory, Place, Slot, Tag, Transport};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::sync::Arc;

/// An [`NcclTransport`] that takes calls on host memory to its GPU. So whatever runs on a transport of the host runs on
/// NCCL, and can be compared. Folds that NCCL lacks go over the control plane.
pub struct Staged(pub NcclTransport);

/// Memory of the host that takes a result.
struct Target {
    address: *mut u8,
    bytes: usize,
    from: usize,
}

struct StagedInFlight {
    inner: Box<dyn InFlight>,
    memory: Vec<DeviceMemory>,
    targets: Vec<Target>,
    result: Option<Result<(), CommError>>,
}

#[expect(unsafe_code, reason = "addresses of a call's memory")]
// SAFETY: the memory is the call's until it ends, whoever ends it.
unsafe impl Send for StagedInFlight {}

#[expect(unsafe_code, reason = "copies memory that the call was given")]
impl Staged {
    /// # Safety
    /// The buffer's memory is valid, and nobody writes to it now.
    unsafe fn up(&self, memory: &mut Vec<DeviceMemory>, from: &Buf<'_>) -> Result<usize, CommError> {
        let mut there = self.0.memory(from.len(), from.dtype())?;
        if !from.is_empty() {
            // SAFETY: the caller's promise.
            let bytes =
                unsafe { std::slice::from_raw_parts(from.as_ptr(), from.len() * from.dtype().bytes()) };
            there.write(bytes)?;
        }
        memory.push(there);
        Ok(memory.len() - 1)
    }

    /// As [`Staged::up`], for memory that also takes a result.
    ///
    /// # Safety
    /// As there.
    unsafe fn up_mut(
        &self,
        memory: &mut Vec<DeviceMemory>,
        targets: &mut Vec<Target>,
        to: &BufMut<'_>,
    ) -> Result<usize, CommError> {
        let (address, bytes) = (to.address(), to.len() * to.dtype().bytes());
        let mut there = self.0.memory(to.len(), to.dtype())?;
        if bytes > 0 {
            // SAFETY: the caller's promise.
            there.write(unsafe { std::slice::from_raw_parts(address, bytes) })?;
        }
        memory.push(there);
        let from = memory.len() - 1;
        targets.push(Target { address, bytes, from });
        Ok(from)
    }

    /// The call on memory of the GPU.
    ///
    /// # Safety
    /// The memory of `call` is valid, and nobody writes to it now.
    unsafe fn lift(
        &self,
        memory: &mut Vec<DeviceMemory>,
        targets: &mut Vec<Target>,
        call: &Call<'_>,
    ) -> Result<Call<'static>, CommError> {
        // SAFETY: the caller's promise.
        let mut up = |b: &Buf<'_>| unsafe { self.up(memory, b) };
        let read = |memory: &[DeviceMemory], at: usize| memory[at].buf().detach();
        let input = match call {
            Call::AllGather { input, .. }
            | Call::ReduceScatter { input, .. }
            | Call::AllToAll { input, .. }
            | Call::Permute { input, .. } => Some(up(input)?),
            Call::AllReduce { .. } | Call::Broadcast { .. } | Call::Barrier => None,
        };
        let input = input.map(|at| read(memory, at));
        // SAFETY: the caller's promise.
        let mut write = |memory: &mut Vec<DeviceMemory>, b: &BufMut<'_>| -> Result<_, CommError> {
            let at = unsafe { self.up_mut(memory, targets, b) }?;
            Ok(memory[at].buf_mut().detach())
        };
        let Some(input) = input else {
            return Ok(match call {
                Call::AllReduce { monoid, bucket } => {
                    let mut there = Vec::with_capacity(bucket.len());
                    for slot in bucket {
                        there.push(match slot {
                            Slot::InPlace(b) => Slot::InPlace(write(memory, b)?),
                            Slot::Apart(a, b) => {
                                // SAFETY: the caller's promise.
                                let at = unsafe { self.up(memory, a) }?;
                                Slot::Apart(memory[at].buf().detach(), write(memory, b)?)
                            }
                        });
                    }
                    Call::AllReduce { monoid: *monoid, bucket: there }
                }
                Call::Broadcast { root, buffer } => {
                    Call::Broadcast { root: *root, buffer: write(memory, buffer)? }
                }
                _ => Call::Barrier,
            });
        };
        Ok(match call {
            Call::AllGather { counts, output, .. } => {
                Call::AllGather { input, counts: counts.clone(), output: write(memory, output)? }
            }
            Call::ReduceScatter { monoid, counts, output, .. } => Call::ReduceScatter {
                monoid: *monoid,
                input,
                counts: counts.clone(),
                output: write(memory, output)?,
            },
            Call::AllToAll { send, output, receive, .. } => Call::AllToAll {
                input,
                send: send.clone(),
                output: write(memory, output)?,
                receive: receive.clone(),
            },
            Call::Permute { send, output, receive, .. } => Call::Permute {
                input,
                send: send.clone(),
                output: write(memory, output)?,
                receive: receive.clone(),
            },
            Call::AllReduce { .. } | Call::Broadcast { .. } | Call::Barrier => Call::Barrier,
        })
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
    ) -> Result<Box<dyn InFlight>, CommError> {
        let there = Place::Device(self.0.ordinal());
        let folds = match &call {
            Call::AllReduce { monoid, bucket } => {
                !bucket.is_empty() && bucket.iter().all(|s| self.0.folds(*monoid, s.dtype(), there))
            }
            Call::ReduceScatter { monoid, input, .. } => self.0.folds(*monoid, input.dtype(), there),
            Call::Barrier => false,
            _ => true,
        };
        if !folds || call.place(group, tag)? != Some(Place::Host) {
            // SAFETY: the caller's promise.
            return unsafe { self.0.post(group, tag, call) };
        }
        call.check(group, tag)?;
        let (mut memory, mut targets) = (Vec::new(), Vec::new());
        // SAFETY: the caller's promise.
        let lifted = unsafe { self.lift(&mut memory, &mut targets, &call) }?;
        // SAFETY: memory of the GPU that the handle keeps until the call has ended.
        let inner = unsafe { self.0.post(group, tag, lifted) }?;
        Ok(Box::new(StagedInFlight { inner, memory, targets, result: None }))
    }

    fn first_step_done(&mut self) {
        self.0.first_step_done();
    }

    fn prepare(&mut self, mesh: &Mesh, sets: &[Vec<Axis>]) -> Result<(), CommError> {
        self.0.prepare(mesh, sets)
    }

    fn folds(&self, monoid: Monoid, dtype: DType, place: Place) -> bool {
        self.0.folds(monoid, dtype, place)
    }

    fn settle(&mut self) -> Result<(), CommError> {
        self.0.settle()
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.0.aborter()
    }
}

impl InFlight for StagedInFlight {
    fn complete(&mut self) -> Result<(), CommError> {
        if let Some(known) = &self.result {
            return known.clone();
        }
        let mut result = self.inner.complete();
        for Target { address, bytes, from } in std::mem::take(&mut self.targets) {
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
