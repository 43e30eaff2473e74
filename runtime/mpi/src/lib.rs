//! Devices that are processes, started and connected by MPI: `mpirun -n 4 ...`. Without the cargo feature `mpi` this crate is
//! empty, so that commands on the whole workspace need no MPI library.
//!
//! One device is one process, or each process has several ([`MpiTransport::devices`]). [`init`] starts the library and gives the
//! process's end of the world; [`MpiTransport::close`] ends it. Collectives are the library's own on a communicator of the group,
//! sends and receives where it has none, and folds of ours where its result would depend on the order of the members (see
//! `moves`).
//!
//! **What is compared.** Every call is checked on its own ([`meshwright_comm::parts::check`]). The calls of the members are
//! compared with each other ([`meshwright_comm::parts::Signature::conflict`]) until
//! [`meshwright_comm::Transport::first_step_done`], or always if [`MpiOptions::compare`] asks for it; that costs two small
//! messages for each member. Calls that are not compared and do not belong together end in
//! [`meshwright_comm::CommError::Library`], in a timeout, or in wrong results.
//!
//! **Invariant: nothing hangs.** A device that waits asks the library again and again, until its timeout. Then it asks all other
//! ranks where they are (a thread of each process answers, whatever its device does), names those that have not come and those
//! that do not answer, and ends the world: all other waits fail with [`meshwright_comm::CommError::Aborted`]. The same happens
//! soon after [`Watch::interrupt`], which is for the signal with which `mpirun` ends the others when a process has died; the
//! error is [`meshwright_comm::CommError::Terminated`] then.
//!
//! **After an error** the process should print it and call [`abort_job`]. MPI cannot take an operation back, but does nothing
//! without being called. So when a collective that has begun fails, this process calls MPI no more (but to end), and the
//! memory that it was lent is left alone: with one exception, data that a network adapter is writing by itself at that
//! very moment.
//!
//! **Order of groups.** All ranks first use the groups that they share in the same order, as every rank of a Plan does. Links
//! between stages are made when they are announced, those between lower ranks first.
#![cfg(feature = "mpi")]

mod channel;
mod collective_state;
mod devices;
mod engine;
mod job;
mod message;
mod moves;
mod options;
mod ordered_folds;
mod process;
mod process_devices;
mod proxy;
mod shared_engine;
mod sys;
mod timing;
mod wait;

pub use devices::DeviceTransport;
pub use job::abort_job;
pub use options::MpiOptions;
pub use process::{MpiTransport, Watch, init, library};
