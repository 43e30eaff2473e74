//! Memory of collectives on a backend of Burn.

use crate::backend::native::bytes_mut;
use crate::collective::CallMemory;
use burn_flex::FlexTensor;
use meshwright_comm::{Buf, BufMut, BufferMismatch};
use meshwright_device::collective::calls::CallPiece;

/// A tensor that stays where it is.
pub(crate) trait Pinning: Send + 'static {
    /// Where it is.
    fn address(&self) -> u64;
}

/// What a collective works on, in the memory of the host or of the device; there nowhere, where there are no elements.
pub(crate) enum BurnMemory<P> {
    Host(FlexTensor),
    Device { pinned: Option<P>, gpu: u32 },
}

impl<P: Pinning> CallMemory for BurnMemory<P> {
    #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
    fn buf(&self, piece: &CallPiece) -> Result<Buf<'_>, BufferMismatch> {
        match self {
            BurnMemory::Host(tensor) => Buf::from_bytes(tensor.bytes(), piece.dtype),
            BurnMemory::Device { pinned, gpu } => {
                let address = pinned.as_ref().map_or(0, P::address);
                // SAFETY: what is pinned stays at its address, has the elements of its piece, and lives in the owner of the
                // call until that has ended; it is not written by any operation, since these write to memory that nobody else
                // holds, or to places of the arena that are free as long as the call is in flight.
                Ok(unsafe { Buf::device(address, piece.elements(), piece.dtype, *gpu) })
            }
        }
    }

    #[expect(unsafe_code, reason = "memory of a GPU is known by its address")]
    fn buf_mut(&mut self, piece: &CallPiece) -> Result<BufMut<'_>, BufferMismatch> {
        match self {
            BurnMemory::Host(tensor) => BufMut::from_bytes(bytes_mut(tensor), piece.dtype),
            BurnMemory::Device { pinned, gpu } => {
                let address = pinned.as_ref().map_or(0, P::address);
                // SAFETY: as above, and what is received is written to memory that is new, to a place of the arena, or to that of what is sent.
                Ok(unsafe { BufMut::device(address, piece.elements(), piece.dtype, *gpu) })
            }
        }
    }
}
