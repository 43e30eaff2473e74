//! Communication between the devices of a mesh: the [`Transport`] trait, devices that are threads, and (by cargo feature)
//! devices that are MPI processes or GPUs with NCCL.
//!
//! **Invariants:**
//! - A collective never hangs: it ends with its result, or with an error that names the rank and the call at fault.
//! - A collective that returned, with a result or an error, touches its caller's memory no more.
//! - Folds of host memory run left to right in group order, element by element, and all members receive the same bits (see [`fold`]).
//! - Nothing here knows of tensors, steps or Burn: memory is flat and typed.
//!
//! Blocking calls ([`Collectives`]) borrow memory. The two-half form ([`Collectives::start`], [`Started::finish`]) owns
//! it in between: a handle that merely borrowed could be leaked by safe code, which would end the borrow while other
//! devices still write there.

mod agree;
pub mod bench;
mod buf;
mod call;
mod error;
mod faults;
pub mod fold;
pub mod gpu;
mod group;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
#[cfg(test)]
mod tests;
pub mod threads;
mod transport;

pub use buf::{Buf, BufMut, BufferMismatch, Element, PairF32, PairF64, Place};
pub use call::{Call, Part, Slot};
pub use error::{CallName, CommError, Kind, Mismatch, Missing, Side};
pub use faults::{Fault, Faulty};
pub use group::{Group, NotAGroup, Tag};
pub use threads::{ThreadsTransport, Timeouts, World};
pub use transport::{Abort, Collectives, InFlight, Memory, Started, Transport};
