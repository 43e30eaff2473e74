//! The trait that every runtime implements, and the calls that every device makes.

use crate::fold::can_fold;
use crate::{Buf, BufMut, Call, CallName, CommError, Group, Missing, Part, Place, Slot, Tag};
use meshwright_plan::{Axis, DType, Mesh, Monoid};
use std::ptr::NonNull;
use std::sync::Arc;

/// One device's end of a communication layer (threads, MPI, NCCL). Devices post collectives; members of a group post the
/// collectives of that group in the same order. Use [`Collectives`] to call it.
pub trait Transport: Send {
    /// This device.
    fn rank(&self) -> usize;

    /// Number of devices.
    fn size(&self) -> usize;

    /// Takes part in a collective, without waiting for the others. Several may be in flight.
    ///
    /// An implementation checks the call ([`Call::check`]), and compares it with those of the other members
    /// ([`Call::conflict`]). It touches the memory of `call` only until [`InFlight::complete`] or the drop of the handle
    /// returns, or until this returns an error.
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
    ) -> Result<Box<dyn InFlight>, CommError>;

    /// The first step, which may take longer, is over: later waits use the shorter timeout.
    fn first_step_done(&mut self);

    /// Whether it folds such elements in such memory. Where it does not, a caller gathers and folds by itself.
    fn folds(&self, monoid: Monoid, dtype: DType, place: Place) -> bool {
        place == Place::Host && can_fold(monoid, dtype)
    }

    /// The GPU whose memory it works on beside the host's.
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

    /// Memory of the device on which the transport works; none where that is the host.
    fn allocate(&self, len: usize, dtype: DType) -> Result<Option<Box<dyn Memory>>, CommError> {
        let _ = (len, dtype);
        Ok(None)
    }

    /// Waits until all that was posted has ended, also in the order of a device, and gives the error that came meanwhile.
    /// To be called after results were read from a device and before they are believed. What is complete on the host has
    /// ended: there it does nothing.
    fn settle(&mut self) -> Result<(), CommError> {
        Ok(())
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
pub trait Memory: Send {
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

    /// Notes a call that this device makes beside the transport, for the errors of others.
    fn came_to(&self, call: &CallName) {
        let _ = call;
    }

    /// The last calls of ranks, where the transport can tell; it may ask them.
    fn whereabouts(&self, ranks: &[usize]) -> Option<Vec<Missing>> {
        let _ = ranks;
        None
    }
}

/// A collective that was posted. Dropping it incomplete gives it up: if all members have come, the drop waits for the
/// end; otherwise it fails for all members.
pub trait InFlight: Send {
    /// Waits for the end. Further calls give the same result.
    fn complete(&mut self) -> Result<(), CommError>;
}

/// A started collective with the memory it works on.
#[must_use = "dropping it gives the collective up, for all members"]
pub struct Started<B: Send + 'static> {
    handle: Option<Box<dyn InFlight>>,
    owner: Option<NonNull<B>>,
}

#[expect(unsafe_code, reason = "the owner is kept behind a raw pointer")]
// SAFETY: a `Started` is a box of `B`, which is `Send`, and a handle, which is `Send`.
unsafe impl<B: Send + 'static> Send for Started<B> {}

impl<B: Send + 'static> Started<B> {
    /// Waits for the end, and gives the memory back. After an error the memory is released: its contents are
    /// unspecified.
    pub fn finish(mut self) -> Result<B, CommError> {
        let owner = self.owner.take();
        let mut take = Reclaim(owner);
        if let Some(mut handle) = self.handle.take() {
            handle.complete()?;
        }
        match take.0.take() {
            Some(owner) => Ok(*reclaim(owner)),
            None => unreachable!("a started collective owns its memory until it is finished"),
        }
    }
}

impl<B: Send + 'static> Drop for Started<B> {
    fn drop(&mut self) {
        // The order matters: memory is released when nobody can touch it any more.
        drop(self.handle.take());
        drop(Reclaim(self.owner.take()));
    }
}

/// Releases the memory on every way out, an unwinding `complete` included.
struct Reclaim<B>(Option<NonNull<B>>);

impl<B> Drop for Reclaim<B> {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            drop(reclaim(owner));
        }
    }
}

#[expect(unsafe_code, reason = "the inverse of `Box::into_raw`")]
fn reclaim<B>(owner: NonNull<B>) -> Box<B> {
    // SAFETY: private; the callers take the pointer out of where `start` had put it, so it is used once, and only after
    // the handle is complete or gone.
    unsafe { Box::from_raw(owner.as_ptr()) }
}

/// All collectives, for every [`Transport`] (also `dyn`). Counts are elements. All of them end with [`CommError`] where
/// members do not come, do not agree, or end.
pub trait Collectives: Transport {
    /// Starts a collective on memory that `owner` owns, to be given back by [`Started::finish`]. `call` borrows the
    /// memory from the owner:
    ///
    /// ```
    /// # use meshwright_comm::{BufMut, Call, Collectives, Group, Slot, Tag, Timeouts, World};
    /// # use meshwright_plan::Monoid;
    /// # let mut transport = World::new(1, Timeouts::default()).remove(0);
    /// # let group = Group::world(1, 0)?;
    /// let tag = Tag::new(0, "gradient of `w`", 12);
    /// let started = transport.start(&group, &tag, vec![1f32, 2.0], |w| Call::AllReduce {
    ///     monoid: Monoid::Sum,
    ///     bucket: vec![Slot::InPlace(BufMut::new(w))],
    /// })?;
    /// // ... compute something else ...
    /// let sum: Vec<f32> = started.finish()?;
    /// # assert_eq!(sum, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn start<B: Send + 'static>(
        &mut self,
        group: &Group,
        tag: &Tag,
        owner: B,
        call: impl for<'x> FnOnce(&'x mut B) -> Call<'x>,
    ) -> Result<Started<B>, CommError> {
        self.try_start(group, tag, owner, |b| Ok::<_, CommError>(call(b)))
    }

    /// [`Collectives::start`] where making the call may fail; the memory is then released.
    fn try_start<B: Send + 'static, E: From<CommError>>(
        &mut self,
        group: &Group,
        tag: &Tag,
        owner: B,
        call: impl for<'x> FnOnce(&'x mut B) -> Result<Call<'x>, E>,
    ) -> Result<Started<B>, E> {
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        let mut started = Started { handle: None, owner: Some(owner) };
        #[expect(unsafe_code, reason = "the borrow outlives this function")]
        // SAFETY: the owner is on the heap behind a raw pointer, where it neither moves nor is used until the handle is
        // complete or dropped; if `started` is leaked, so is the owner. `call` works for any lifetime, so what it returns
        // borrows from the owner or from statics; and `B: 'static`, so the owner borrows from nothing shorter.
        let handle = unsafe { self.post(group, tag, call(&mut *owner.as_ptr())?) }?;
        started.handle = Some(handle);
        Ok(started)
    }

    /// Any collective on borrowed memory, from start to end.
    fn call(&mut self, group: &Group, tag: &Tag, call: Call<'_>) -> Result<(), CommError> {
        #[expect(unsafe_code, reason = "the handle does not outlive this function")]
        // SAFETY: the borrows in `call` outlive this function, and the handle ends within it, also by unwinding.
        unsafe { self.post(group, tag, call) }?.complete()
    }

    /// Folds each buffer over all members, in place. Buffers may be empty and of different dtypes.
    fn all_reduce<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        monoid: Monoid,
        bucket: impl IntoIterator<Item = BufMut<'a>>,
    ) -> Result<(), CommError> {
        let bucket = bucket.into_iter().map(Slot::InPlace).collect();
        self.call(group, tag, Call::AllReduce { monoid, bucket })
    }

    /// Joins the members' pieces in group order; `counts[i]` elements come from member `i`.
    fn all_gather_v<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        input: impl Into<Buf<'a>>,
        counts: impl Into<Arc<[usize]>>,
        output: impl Into<BufMut<'a>>,
    ) -> Result<(), CommError> {
        let call = Call::AllGather { input: input.into(), counts: counts.into(), output: output.into() };
        self.call(group, tag, call)
    }

    /// Folds inputs that are pieces in group order, and keeps the piece of this member; piece `i` has `counts[i]`
    /// elements.
    fn reduce_scatter_v<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        monoid: Monoid,
        input: impl Into<Buf<'a>>,
        counts: impl Into<Arc<[usize]>>,
        output: impl Into<BufMut<'a>>,
    ) -> Result<(), CommError> {
        let (input, counts, output) = (input.into(), counts.into(), output.into());
        self.call(group, tag, Call::ReduceScatter { monoid, input, counts, output })
    }

    /// Sends `send[i]` elements to member `i` and receives `receive[i]` from it; pieces lie in group order.
    fn all_to_all_v<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        (input, send): (impl Into<Buf<'a>>, impl Into<Arc<[usize]>>),
        (output, receive): (impl Into<BufMut<'a>>, impl Into<Arc<[usize]>>),
    ) -> Result<(), CommError> {
        let (input, output) = (input.into(), output.into());
        self.call(group, tag, Call::AllToAll { input, send: send.into(), output, receive: receive.into() })
    }

    /// Copies ranges between members; see [`Call::Permute`].
    fn permute<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        (input, send): (impl Into<Buf<'a>>, impl Into<Arc<[Part]>>),
        (output, receive): (impl Into<BufMut<'a>>, impl Into<Arc<[Part]>>),
    ) -> Result<(), CommError> {
        let (input, output) = (input.into(), output.into());
        self.call(group, tag, Call::Permute { input, send: send.into(), output, receive: receive.into() })
    }

    /// Copies the buffer of the member at position `root` to all members.
    fn broadcast<'a>(
        &mut self,
        group: &Group,
        tag: &Tag,
        root: usize,
        buffer: impl Into<BufMut<'a>>,
    ) -> Result<(), CommError> {
        self.call(group, tag, Call::Broadcast { root, buffer: buffer.into() })
    }

    /// Waits until all members have come.
    fn barrier(&mut self, group: &Group, tag: &Tag) -> Result<(), CommError> {
        self.call(group, tag, Call::Barrier)
    }

    /// Compares bytes (a Plan's hash) over the group: [`CommError::Disagree`], the same on all members, names the ranks
    /// that differ.
    fn agree(&mut self, group: &Group, tag: &Tag, bytes: &[u8]) -> Result<(), CommError> {
        crate::agree::agree(self, group, tag, bytes)
    }
}

impl<T: Transport + ?Sized> Collectives for T {}
