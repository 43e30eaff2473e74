//! Runs Plans: a [`Plan`](meshwright_plan::Plan) becomes, for each device, segments of Burn operations with own kernels
//! among them, and collectives in between.
//!
//! **Invariants:**
//! - This is the only crate that names Burn.
//! - A device computes what the Plan says, in the Plan's order, and nothing else communicates.
//! - A device that fails, by an error or a panic, ends all others; the error names rank, step, value and source line.
//! - Burn is never given an empty tensor.

mod blame;
mod blocks;
mod build;
mod clock;
mod cluster;
mod collective;
mod contract;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
mod cube;
mod devices;
mod engine;
mod error;
mod halo;
mod host;
pub mod kernels;
mod local;
mod machine;
mod own;
mod pack;
mod plain;
mod processes;
mod program;
mod share;
mod shared_end;
mod tensor;
#[cfg(test)]
mod tests;
pub mod trace;
mod windows;

pub use clock::process_cpu_time;
pub use cluster::{Cluster, ClusterOptions, Provider, StepReport};
pub use devices::{DeviceCollectives, DeviceKind, Lowering};
pub use engine::{Engine, LocalInput, ProgramId, StateInfo, local_inputs};
pub use error::{ExecError, Place};
pub use host::{HostData, HostTensor};
pub use kernels::KernelError;
pub use machine::Memory;
pub use processes::{About, Processes};
pub use trace::{DeviceTrace, Record, What};
