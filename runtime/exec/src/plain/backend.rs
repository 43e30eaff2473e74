//! What a backend has to tell for its tensors to be sent from its own memory.

use super::transfer::Lost;
use burn_flex::Flex;
use burn_ir::{BackendIr, HandleKind};

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
