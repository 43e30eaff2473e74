//! Memory of collectives on a backend of Burn.

use crate::transfer::{download_numbers, upload};
use burn_ir::BackendIr;
use meshwright_comm::{Buf, BufMut, BufferMismatch};
use meshwright_cpu::{HostMemory, Pool, from_host, to_host};
use meshwright_device::collective::calls::CallPiece;
use meshwright_exec::backend::{CallMemory, DeviceError};
use meshwright_exec::{HostTensor, opaque};

/// A tensor that stays where it is.
pub trait Pinning: Send + 'static {
    /// Its address.
    fn address(&self) -> u64;
}

/// Memory of a collective, on the host or on the device; an empty tensor has none.
pub enum BurnMemory<P> {
    /// On the host.
    Host(HostMemory),
    /// On the GPU of that number.
    Device {
        /// The tensor.
        pinned: Option<P>,
        /// The GPU.
        gpu: u32,
    },
}

impl<P: Pinning> CallMemory for BurnMemory<P> {
    #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
    fn buf(&self, piece: &CallPiece) -> Result<Buf<'_>, BufferMismatch> {
        match self {
            BurnMemory::Host(memory) => memory.buf(piece),
            BurnMemory::Device { pinned, gpu } => {
                let address = pinned.as_ref().map_or(0, P::address);
                // SAFETY: a pinned tensor stays at its address, has the elements of its piece, and lives in the owner
                // of the call until that has ended; no operation writes to it, since operations write to memory without
                // other holders, or to places of the arena that are free as long as the call is in flight.
                Ok(unsafe { Buf::device(address, piece.elements(), piece.dtype, *gpu) })
            }
        }
    }

    #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
    fn buf_mut(&mut self, piece: &CallPiece) -> Result<BufMut<'_>, BufferMismatch> {
        match self {
            BurnMemory::Host(memory) => memory.buf_mut(piece),
            BurnMemory::Device { pinned, gpu } => {
                let address = pinned.as_ref().map_or(0, P::address);
                // SAFETY: as above; the result is written to new memory, to a place of the arena, or over the operand.
                Ok(unsafe { BufMut::device(address, piece.elements(), piece.dtype, *gpu) })
            }
        }
    }
}

impl<P> BurnMemory<P> {
    /// A copy of a tensor in the memory of the host, to be sent; of none, nothing.
    ///
    /// # Errors
    /// If the tensor cannot be read.
    pub fn of_host<B: BackendIr>(
        tensor: Option<B::Handle>,
        piece: &CallPiece,
    ) -> Result<BurnMemory<P>, DeviceError> {
        let host = match tensor {
            Some(tensor) => download_numbers::<B>(tensor, piece.dtype, &piece.shape)?,
            None => HostTensor::zeros(piece.dtype, vec![0]),
        };
        Ok(BurnMemory::Host(HostMemory(from_host(host))))
    }
}

/// The tensor that was received in memory of the host, which the pool takes back; none where nothing could be.
pub fn uploaded<B: BackendIr>(
    HostMemory(tensor): HostMemory,
    pool: &mut Pool,
    piece: &CallPiece,
    device: &B::Device,
) -> Option<B::Handle> {
    let host = piece.tensor.map(|_| to_host(&tensor, piece.dtype, &piece.shape));
    pool.give(tensor);
    host.map(|h| opaque::<B>(upload::<B>(h, device)))
}
