//! What a backend has to tell for its tensors to be sent from its own memory.

use super::collective::Piece;
use super::lower::{extents, stored};
use super::transfer::Lost;
use burn_backend::Shape;
use burn_flex::Flex;
use burn_ir::{BackendIr, HandleKind};
use meshwright_comm::{Buf, BufMut};

/// A backend that plain operations run on.
pub(crate) trait Plain: BackendIr + 'static {
    /// A dense tensor whose memory stays where it is.
    type Pinned: Send + 'static;

    /// The number of a device whose memory a transport can read and write; none where only the host's can be.
    fn ordinal(device: &Self::Device) -> Option<u32>;

    /// Brings a tensor into place, in the order of what the device was told before.
    fn pin(tensor: HandleKind<Self>) -> Result<Self::Pinned, Lost>;

    /// Where it is.
    fn address(pinned: &Self::Pinned) -> u64;

    /// The tensor again.
    fn unpin(pinned: Self::Pinned, device: &Self::Device) -> HandleKind<Self>;
}

impl Plain for Flex {
    type Pinned = std::convert::Infallible;

    fn ordinal(_: &Self::Device) -> Option<u32> {
        None
    }

    fn pin(_: HandleKind<Self>) -> Result<Self::Pinned, Lost> {
        Err(Lost("it is in the memory of the host".into()))
    }

    fn address(pinned: &Self::Pinned) -> u64 {
        match *pinned {}
    }

    fn unpin(pinned: Self::Pinned, _: &Self::Device) -> HandleKind<Self> {
        match pinned {}
    }
}

/// A tensor of that shape with anything in it.
pub(crate) fn empty<B: Plain>(piece: &Piece, device: &B::Device) -> HandleKind<B> {
    let (shape, dtype) = (Shape::from(extents(&piece.shape)), stored(piece.dtype));
    if dtype.is_float() {
        HandleKind::Float(B::float_empty(shape, device, dtype.into()))
    } else {
        HandleKind::Int(B::int_empty(shape, device, dtype.into()))
    }
}

/// An address that any element can stand at, for memory without elements.
const NOWHERE: u64 = 256;

/// What is sent.
pub(crate) fn device_buf<'a, B: Plain>(
    piece: &Piece,
    pinned: Option<&'a B::Pinned>,
    ordinal: u32,
) -> Buf<'a> {
    let (address, len) = pinned.map_or((NOWHERE, 0), |p| (B::address(p), piece.elements()));
    #[expect(unsafe_code, reason = "the memory of a device, by address")]
    // SAFETY: a pinned tensor is dense, of this dtype and shape, in the primary context of that GPU, where it stays as long
    // as it is borrowed; whatever the device was told to write to it was submitted before it was pinned, and nobody has
    // been told to write to it since, since only this collective has it.
    unsafe {
        Buf::device(address, len, piece.dtype, ordinal)
    }
}

/// What is received.
pub(crate) fn device_buf_mut<'a, B: Plain>(
    piece: &Piece,
    pinned: Option<&'a B::Pinned>,
    ordinal: u32,
) -> BufMut<'a> {
    let (address, len) = pinned.map_or((NOWHERE, 0), |p| (B::address(p), piece.elements()));
    #[expect(unsafe_code, reason = "the memory of a device, by address")]
    // SAFETY: as above; it was made for this collective, so nobody else knows it.
    unsafe {
        BufMut::device(address, len, piece.dtype, ordinal)
    }
}
