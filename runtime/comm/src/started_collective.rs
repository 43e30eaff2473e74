//! A collective that goes on while its caller does other things, with the memory it works on.

use crate::{AsyncCollective, CommError};
use std::ptr::NonNull;

/// A started collective with the memory it works on.
#[must_use = "dropping it cancels the collective, for all members"]
pub struct Started<B: Send + 'static> {
    handle: Option<Box<dyn AsyncCollective>>,
    owner: Option<NonNull<B>>,
}

#[expect(unsafe_code, reason = "the owner is kept behind a raw pointer")]
// SAFETY: a `Started` is a box of `B`, which is `Send`, and a handle, which is `Send`.
unsafe impl<B: Send + 'static> Send for Started<B> {}

impl<B: Send + 'static> Started<B> {
    /// Takes the memory, for a handle that is yet to come.
    pub(crate) fn new(owner: B) -> (Started<B>, NonNull<B>) {
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        (Started { handle: None, owner: Some(owner) }, owner)
    }

    /// The collective on its memory.
    pub(crate) fn set(&mut self, handle: Box<dyn AsyncCollective>) {
        self.handle = Some(handle);
    }

    /// Waits for the end, and gives the memory back. After an error the memory is released: its contents are
    /// unspecified.
    pub fn wait(mut self) -> Result<B, CommError> {
        let owner = self.owner.take();
        let mut take = Reclaim(owner);
        if let Some(mut handle) = self.handle.take() {
            handle.wait()?;
        }
        match take.0.take() {
            Some(owner) => Ok(*reclaim(owner)),
            None => unreachable!("a started collective owns its memory until it was waited for"),
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

/// Releases the memory on every way out, an unwinding `wait` included.
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
