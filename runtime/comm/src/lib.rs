//! Communication between the devices of a mesh: the [`Transport`] trait, devices that are threads, and GPUs with NCCL. Other
//! crates have more transports, made of [`parts`].
//!
//! **Invariants:**
//! - A collective never hangs: it ends with its result, or with an error that names the rank and the call at fault.
//! - A collective that returned, with a result or an error, touches its caller's memory no more.
//! - Folds of host memory run left to right in group order, element by element, and all members receive the same bits (see
//!   [`fold`]).
//! - Nothing here knows of tensors, steps or Burn: memory is flat and typed.
//!
//! Blocking calls ([`Collectives`]) borrow memory. The asynchronous form ([`Collectives::start`], [`Started::wait`]) owns
//! it in between: a handle that merely borrowed could be leaked by safe code, which would end the borrow while other
//! devices still write there.

pub mod bench;
mod buf;
mod call;
mod collectives;
mod error;
mod faults;
pub mod fold;
mod names;
pub mod nccl;
mod recorder;
mod signature;
mod started_collective;
mod subnormals;
#[cfg(test)]
mod tests;
pub mod threads;
mod transport;
mod waits;
pub mod wire;

/// Parts of a transport that another crate implements: calls that were checked, and who blocks whom.
pub mod parts {
    pub use crate::call::{Addresses, PostedCall, check};
    pub use crate::signature::{Division, Extent, Signature, starts};
    pub use crate::threads::Pending;
    pub use crate::threads::work::run_alone;
    pub use crate::transport::Completed;
    pub use crate::waits::blocking;
}

pub use buf::{Buf, BufMut, BufferMismatch, Element, MemorySpace, ValueIndexF32, ValueIndexF64};
pub use call::{Call, Slot};
pub use collectives::Collectives;
pub use error::{CommError, Mismatch, MismatchSide, Missing};
pub use faults::{CallMoment, CallWatcher, FaultInjector, InjectedFault};
pub use meshwright_plan::{BusFactor, CollectiveKind, Group, NotAGroup};
pub use names::{CallName, Tag};
pub use recorder::{CallRecorder, RecordedCalls};
pub use signature::{Layout, Part};
pub use started_collective::Started;
pub use subnormals::flush_subnormals;
pub use threads::{ThreadsTransport, Timeouts, World};
pub use transport::{Abort, AsyncCollective, Transport, TransportMemory};
