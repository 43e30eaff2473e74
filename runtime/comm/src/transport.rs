//! The trait that every communication layer implements.

use crate::fold::can_fold;
use crate::{Buf, BufMut, Call, CallName, CallRecorder, CommError, Group, MemorySpace, Missing, Tag};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::sync::Arc;

/// One device's end of a communication layer (threads, MPI, NCCL). Devices post collectives; members of a group post the
/// collectives of that group in the same order. Use [`crate::Collectives`] to call it.
pub trait Transport: Send {
    /// This device.
    fn rank(&self) -> usize;

    /// Number of devices.
    fn size(&self) -> usize;

    /// Takes part in a collective, without waiting for the others. Several may be in flight.
    ///
    /// An implementation checks the call, and compares it with those of the other members. It touches the memory of `call` only
    /// until [`AsyncCollective::wait`] or the drop of the handle returns, or until this returns an error.
    ///
    /// # Safety
    /// Until then the memory stays valid, nobody else writes to the inputs, and nobody else touches the outputs, even if
    /// the handle is leaked. For the memory of a device, "until" is meant in the order of that device (see
    /// [`Buf::device`]).
    #[expect(unsafe_code, reason = "memory is used beyond the lifetime of the call")]
    unsafe fn post(
        &mut self,
        group: &Group,
        tag: &Tag,
        call: Call<'_>,
    ) -> Result<Box<dyn AsyncCollective>, CommError>;

    /// The first step, which may take longer, is over: later waits use the shorter timeout.
    fn first_step_done(&mut self);

    /// Whether it folds such elements in such memory. Where it does not, a caller gathers and folds by itself.
    fn folds(&self, monoid: Monoid, dtype: DType, place: MemorySpace) -> bool {
        place == MemorySpace::Host && can_fold(monoid, dtype)
    }

    /// The GPU whose memory it works on, besides the host's.
    fn gpu(&self) -> Option<u32> {
        None
    }

    /// What the user should know of how it works here, if it is otherwise than was asked for.
    fn note(&self) -> Option<&str> {
        None
    }

    /// Announces the groups over sets of axes of a mesh that will be used, so that they are made together and at once. All
    /// devices call it with equal arguments, or none does: groups that were not announced are made at their first use.
    fn prepare(&mut self, mesh: &Mesh, sets: &[Vec<Axis>]) -> Result<(), CommError> {
        let _ = (mesh, sets);
        Ok(())
    }

    /// Announces the links over which this device will send and receive messages: groups of a sender and a receiver. Every device
    /// calls it, each with its own. Messages over a link are calls with a tag of that link.
    ///
    /// # Errors
    /// Where a link cannot be made.
    fn prepare_links(&mut self, links: &[Group]) -> Result<(), CommError> {
        let _ = links;
        Ok(())
    }

    /// From now on calls come after what that stream of the device has when they are posted, and what it gets after a wait comes
    /// after the call; other streams have no part in that. Without a stream this is so of all work of the device.
    ///
    /// # Safety
    /// It is a stream of the device as long as this lives.
    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn compute_on(&mut self, stream: u64) {
        let _ = stream;
    }

    /// Memory of the device on which the transport works; none where that is the host.
    fn allocate(&self, len: usize, dtype: DType) -> Result<Option<Box<dyn TransportMemory>>, CommError> {
        let _ = (len, dtype);
        Ok(None)
    }

    /// Waits until all that was posted has ended, also in the order of a device, and gives the error that came meanwhile.
    /// To be called after results were read from a device and before they are believed. What is complete on the host has
    /// ended: there it does nothing.
    fn settle(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// What records calls with what the device computes; none where calls cannot be recorded. The same for all ranks.
    fn recorder(&mut self) -> Option<&mut dyn CallRecorder> {
        None
    }

    /// A way to end all devices from anywhere, also from another thread or after this transport is gone.
    fn aborter(&self) -> Arc<dyn Abort>;

    /// Tells all devices that this one ends, and why: their waits, pending and later, end at once with
    /// [`CommError::Aborted`]. The first reason counts.
    fn abort(&self, reason: &str) {
        self.aborter().abort(reason);
    }
}

/// Elements in the memory of a device, allocated by a [`Transport`] for benchmarks and tests.
pub trait TransportMemory: Send {
    /// The elements, for a collective to read.
    fn buf(&self) -> Buf<'_>;

    /// The elements, for a collective to write.
    fn buf_mut(&mut self) -> BufMut<'_>;

    /// Copies as many bytes of the host here, once all that was posted has ended (at once where no collective was given
    /// the memory yet).
    fn write(&mut self, bytes: &[u8]) -> Result<(), CommError>;

    /// Copies the elements to as many bytes of the host, once all that was posted has ended.
    fn read(&self, bytes: &mut [u8]) -> Result<(), CommError>;
}

/// Ends all devices on behalf of one; see [`Transport::abort`].
pub trait Abort: Send + Sync {
    /// Ends all devices.
    fn abort(&self, reason: &str);

    /// The first abort: the rank that ended and its reason. A transport that cannot tell without a call says none.
    fn aborted(&self) -> Option<(usize, String)> {
        None
    }

    /// Notes a call that this device makes outside of the transport, for the errors of others.
    fn entered(&self, call: &CallName) {
        let _ = call;
    }

    /// The last calls of ranks, where the transport can tell; it may ask them.
    fn last_calls(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        let _ = ranks;
        None
    }
}

/// A collective that was posted. Dropping it before it was waited for cancels it: if all members have entered, the drop waits
/// for the end; otherwise it fails for all members.
pub trait AsyncCollective: Send {
    /// Waits for the end. Further calls give the same result.
    fn wait(&mut self) -> Result<(), CommError>;
}

/// A collective that ended well when it was posted.
#[derive(Debug)]
pub struct Completed;

impl AsyncCollective for Completed {
    fn wait(&mut self) -> Result<(), CommError> {
        Ok(())
    }
}
