//! Runs Plans: a [`Plan`](meshwright_plan::Plan) becomes, for each device, segments of Burn operations with kernels among
//! them, and collectives in between.
//!
//! **Invariants:**
//! - This is the only crate that names Burn.
//! - A device computes what the Plan says, and nothing else communicates. Collectives keep the Plan's order; other steps may be fused
//!   and reordered for the target.
//! - A device that fails, by an error or a panic, ends all others; the error names rank, step, value and source line.
//! - Burn is never given an empty tensor.

mod allocator;
mod backend;
mod clock;
mod cluster;
mod collective;
mod engine;
mod error;
mod tensor;
#[cfg(test)]
mod tests;
pub mod trace;

pub use allocator::{DiagnosedAllocator, try_reserve};
pub use backend::Memory;
pub use backend::native::{kernels, peak_value_bytes};
pub use backend::watch::{KernelUse, KernelWatch, KernelsBy};
pub use clock::process_cpu_time;
pub use cluster::{
    About, Cluster, ClusterOptions, CpuBackend, DeviceCollectives, DeviceKind, GpuShare, LaunchedStep,
    Processes, Provider, StepReport,
};
pub use engine::slow_products::{SlowProduct, slow_products};
pub use engine::{DeviceReport, Engine, ExampleDraws, LocalInput, ProgramId, StateInfo, local_inputs};
pub use error::{ExecError, GpuFault, HeldMemory, OutOfMemory, Place, SilentGpu};
pub use kernels::KernelError;
pub use tensor::{Finiteness, HostData, HostTensor};
pub use trace::{DeviceTrace, Record, What};
