//! Devices that are NVIDIA GPUs: NCCL's collectives, on top of any transport of the host.
//!
//! **Two planes.** A transport of the host (threads, MPI) is the control plane: it carries unique ids, compares calls in the
//! first step, tells aborts, and takes the calls on host memory. Calls on the memory of a device go to NCCL. So one process
//! may have all GPUs, or one, or some, as the control plane has it.
//!
//! **Communicators.** Each group has one. [`Transport::prepare`](crate::Transport::prepare) splits those of a mesh's axes from
//! the world's; other groups are made at their first use, by an id that their first member sends. No call of NCCL blocks: while
//! it makes progress it is asked again and again, until it is done, time is up, or another rank has aborted.
//!
//! **Order.** Everything runs on one stream of our own. With [`LaunchOrder::Events`] the device orders it: a collective waits for
//! all work that the context had when it was posted, and what is submitted after
//! [`AsyncCollective::wait`](crate::AsyncCollective::wait) waits for the collective. The host never waits, so an error may come
//! after `wait` has returned: the next call gives it, or [`Transport::settle`](crate::Transport::settle). In the first step alone
//! the host waits for each. With [`LaunchOrder::HostSync`] the host waits before and after, and members meet on the control plane
//! before any of them starts.
//!
//! **Reductions** run in an order that NCCL chooses, so floating-point sums may differ from other transports' in the last bits,
//! and NCCL does not promise which of a NaN and a number is the maximum. Truth values must be 0 or 1. Arg-reductions of device
//! memory do not exist ([`Transport::folds`](crate::Transport::folds)): they are gathered and folded by the caller.

mod abort;
mod api;
mod device;
mod host_staging;
mod launch;
mod memory;
mod options;
mod setup;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub use host_staging::Staged;
pub use memory::DeviceMemory;
pub use options::{Checks, LaunchOrder, NcclOptions};
pub use transport::NcclTransport;
