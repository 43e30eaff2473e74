//! Runs device plans: prepares the kernels of each launch, runs launches in order, and makes the calls of collectives.
//!
//! **Invariants:**
//! - It names no backend: each is a crate that implements [`backend::Backend`] and [`Platform`].
//! - A device computes what the Plan says, and nothing else communicates. Collectives keep the Plan's order; other steps may be
//!   fused and reordered for the target.
//! - A device that fails, by an error or a panic, ends all others; the error names rank, step, value and source line.
//! - Burn is never given an empty tensor.

pub mod backend;
mod clock;
mod cluster;
mod collective;
mod engine;
mod error;
mod open_pass;
mod tensor;
pub mod trace;
pub mod watch;

pub use backend::Memory;
pub use clock::process_cpu_time;
pub use cluster::{
    About, Cluster, ClusterOptions, DeviceCollectives, DeviceKind, GpuShare, LaunchedStep, Platform,
    ProcessHome, Processes, Provider, StepReport,
};
pub use engine::interpreter::opaque;
pub use engine::place::place;
pub use engine::programs::Programs;
pub use engine::slow_matmuls::{SlowMatmul, slow_matmuls};
pub use engine::{DeviceReport, Engine, ExampleDraws, LocalInput, ProgramId, StateInfo, local_inputs};
pub use error::{ExecError, GpuFault, HeldMemory, OutOfMemory, Place, SilentGpu};
pub use meshwright_device::KernelError;
pub use tensor::{Finiteness, HostData, HostTensor, Slice, SliceMut};
pub use trace::{DeviceTrace, Record, What};
pub use watch::{KernelUse, KernelWatch, KernelsBy};
