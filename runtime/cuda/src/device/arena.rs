//! The memory of an arena: one allocation for all programs of a device, since they run one after the other and leave nothing in
//! it.

use crate::kernel::operands::{ResultSlot, is_same};
use burn_backend::Backend as _;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_ir::TensorIr;
use cubecl::server::Handle;
use cubecl::std::tensor::copy_into;
use meshwright_device::KernelError;
use meshwright_device::arena::{Arena, Spot, result_bytes};
use meshwright_exec::backend::{self, DeviceError};
use std::sync::Arc;

/// The arena of a device.
pub(crate) struct ArenaMemory {
    device: CubeDevice,
    /// Bytes of the largest program's arena.
    bytes: u64,
    /// Found by the first run that needs it.
    pub(crate) memory: Option<Handle>,
    /// The arena of the running program, and its next result.
    of: Arc<Arena>,
    next: usize,
}

impl backend::ArenaMemory for ArenaMemory {
    fn load(&mut self, arena: &Arena) {
        if arena.bytes > self.bytes {
            (self.bytes, self.memory) = (arena.bytes, None);
        }
    }

    fn is_missing(&self) -> bool {
        self.memory.is_none() && self.bytes > 0
    }

    fn enter(&mut self, arena: &Arc<Arena>) {
        (self.of, self.next) = (arena.clone(), 0);
        if self.is_missing() {
            let (client, bytes) = (self.device.client(), self.bytes as usize);
            // Freed memory may become the arena, including a smaller arena.
            if CubeBackend::sync(&self.device).is_ok() {
                let _ = client.memory_cleanup();
            }
            self.memory = Some(client.memory_persistent_allocation((), |()| client.empty(bytes)));
        }
    }

    fn leave(&self) -> Result<(), DeviceError> {
        let [asked, foreseen] = [self.next, self.of.spots.len()];
        let message =
            || DeviceError(format!("a run has asked for {asked} results, and {foreseen} were foreseen"));
        if asked == foreseen { Ok(()) } else { Err(message()) }
    }

    fn renew(&mut self) {
        self.memory = None;
    }
}

impl ArenaMemory {
    /// An empty arena for a device without programs.
    pub(crate) fn of(device: CubeDevice) -> ArenaMemory {
        ArenaMemory { device, bytes: 0, memory: None, of: Arc::default(), next: 0 }
    }

    /// The memory of the next results.
    pub(crate) fn results<'a>(&mut self, irs: &'a [TensorIr]) -> Result<Vec<ResultSlot<'a>>, KernelError> {
        let device = self.device.clone();
        irs.iter().map(|ir| Ok(ResultSlot { ir, device: device.clone(), given: self.result(ir)? })).collect()
    }

    fn result(&mut self, ir: &TensorIr) -> Result<Option<Handle>, KernelError> {
        let asked = [false, true].map(|gaps| result_bytes(&ir.shape.to_vec(), ir.dtype.size(), gaps));
        match (self.spot(), &self.memory) {
            (Some(Spot::Own), _) => Ok(None),
            (Some(Spot::At { start, bytes }), Some(memory)) if asked.contains(&bytes) => {
                Ok(Some(part(memory, start, bytes)))
            }
            (spot, _) => Err(unexpected(self.next - 1, &format!("{} bytes", asked[0]), spot)),
        }
    }

    /// The place of the next result, which a collective writes.
    pub(crate) fn received(&mut self, ir: &TensorIr) -> Result<ReceiveSpot<CubeTensor>, KernelError> {
        if self.of.spots.get(self.next) == Some(&Spot::Operand) {
            self.next += 1;
            return Ok(ReceiveSpot::Sent);
        }
        let slot = ResultSlot { ir, device: self.device.clone(), given: self.result(ir)? };
        Ok(slot.placed().map_or(ReceiveSpot::Own, ReceiveSpot::At))
    }

    /// Whether the next result takes the storage of the first operand; if so, writes a value into it at a position of
    /// its first dim.
    pub(crate) fn updated(
        &mut self,
        all: &CubeTensor,
        value: &CubeTensor,
        position: usize,
    ) -> Result<Option<CubeTensor>, KernelError> {
        match self.spot() {
            Some(Spot::Own) => Ok(None),
            Some(Spot::Operand) => {
                let bytes = (value.meta.num_elements() * value.dtype.size()) as u64;
                if !all.is_contiguous() || all.dtype != value.dtype {
                    return Err(unexpected(self.next - 1, "dense rows of one type", Some(Spot::Operand)));
                }
                let handle = part(&all.handle, position as u64 * bytes, bytes);
                // It may have been made there.
                if !is_same(&handle, &value.handle) {
                    let (client, device, shape) = (&all.client, all.device.clone(), value.meta.shape.clone());
                    let to = CubeTensor::new_contiguous(client.clone(), device, shape, handle, all.dtype);
                    let dtype = dtype_to_storage_type(all.dtype);
                    copy_into(client, value.clone().binding(), to.binding(), dtype);
                }
                Ok(Some(all.clone()))
            }
            spot => Err(unexpected(self.next - 1, "that of an operand", spot)),
        }
    }

    fn spot(&mut self) -> Option<Spot> {
        self.next += 1;
        self.of.spots.get(self.next - 1).copied()
    }
}

/// The run does not go as it was foreseen, which is our mistake.
fn unexpected(result: usize, asked: &str, spot: Option<Spot>) -> KernelError {
    KernelError::Unsupported(format!(
        "result {result} of a run is to have {asked}, but its memory is {spot:?}"
    ))
}

/// A range of bytes of a handle.
fn part(of: &Handle, start: u64, bytes: u64) -> Handle {
    let rest = of.size_in_used() - start - bytes;
    of.clone().offset_start(start).offset_end(rest)
}

/// The memory of a collective's result.
pub(crate) enum ReceiveSpot<H> {
    /// The memory of the operand.
    Sent,
    /// A place in the arena.
    At(H),
    /// Its own.
    Own,
}
