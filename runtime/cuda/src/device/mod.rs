//! A running device: its backend, memory, transfers, recorded runs and faults.

mod arena;
mod backend;
mod captures;
mod download;
pub(crate) mod faults;
mod graphs;
mod input_upload;
mod tensors;
mod tuned;
pub(crate) mod watch;

pub(crate) use backend::{GpuBackend, target_of};
