//! Errors of GPUs: memory that they do not have, and faults that they report.

use crate::backend::Memory;
use crate::error::Place;
use meshwright_gpu::monitor::{DeviceMemory, GpuHealth, GpuName};
use meshwright_plan::Plan;
use std::fmt;
use std::sync::Arc;

/// A GPU had no memory for what a run asked for, though the Plan fits in what the GPU has.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    /// The rank, and where in a program: the step that runs in the kernel whose memory could not be had.
    pub place: Place,
    /// The GPU.
    pub gpu: GpuName,
    /// Bytes that were asked for, where that is known. The allocator asks for whole pages, which may hold several values.
    pub asked: Option<u64>,
    /// What the allocator of this process has on the GPU.
    pub held: Option<Memory>,
    /// What the GPU has, and what of it nobody uses.
    pub device: Option<DeviceMemory>,
    /// The Plan of the program, where one ran.
    pub plan: Option<Arc<Plan>>,
    /// Lines that, added to the layout, make a device need less, and how many bytes then: for whoever knows the layout to fill in.
    pub lines: Option<(Vec<String>, u64)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { place, gpu, .. } = self;
        match self.asked {
            Some(bytes) => write!(f, "{place}: {gpu} has no memory for another {bytes} bytes"),
            None => write!(f, "{place}: {gpu} has no memory left"),
        }
    }
}

/// A GPU reported an error, after which nothing on it can be trusted.
#[derive(Clone, Debug)]
pub struct GpuFault {
    /// The rank, and where in a program the error came up. Kernels run later than they are launched: it may be that of an earlier step.
    pub place: Place,
    /// The GPU.
    pub gpu: GpuName,
    /// The driver's name of the error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub error: String,
    /// What NVML knows.
    pub health: GpuHealth,
}

impl fmt::Display for GpuFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} reported {}", self.place, self.gpu, self.error)?;
        self.health.findings().iter().try_for_each(|found| write!(f, "; {found}"))
    }
}

/// A GPU that did not end what it does, and what NVML knows of it.
#[derive(Clone, Debug)]
pub struct SilentGpu {
    /// The GPU.
    pub name: GpuName,
    /// What NVML knows.
    pub health: GpuHealth,
}

impl fmt::Display for SilentGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " on {}", self.name)?;
        self.health.findings().iter().try_for_each(|found| write!(f, "; {found}"))
    }
}
