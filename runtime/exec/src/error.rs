//! Errors of a device, each with its place.

use meshwright_comm::CommError;
use meshwright_device::KernelError;
use meshwright_gpu::monitor::{DeviceMemory, GpuHealth, GpuName};
use meshwright_plan::{DType, Plan};
use std::fmt;
use std::sync::Arc;

/// The place of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub rank: usize,
    /// Number of the training step, if one was running.
    pub step_number: Option<u64>,
    /// The step of the Plan: its position and name.
    pub step: Option<(usize, &'static str)>,
    /// The value that the step computes.
    pub value: String,
    /// Line of the model file, from 1; 0 where there is none.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(n) = self.step_number {
            write!(f, ", step {n}")?;
        }
        if let Some((index, name)) = self.step {
            write!(f, ", {name} of `{}`", self.value)?;
            if self.line > 0 {
                write!(f, " at line {}", self.line)?;
            }
            write!(f, " (plan step {index})")?;
        }
        Ok(())
    }
}

fn at_line(place: &Place) -> String {
    if place.line > 0 { format!(" at line {}", place.line) } else { String::new() }
}

/// Bytes of a GPU that the allocator of a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// In use.
    pub in_use: u64,
    /// In use or not.
    pub reserved: u64,
}

/// A GPU had no memory left, though the Plan fits in its memory.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    /// The rank, and where in a program: the step that runs in the kernel whose memory could not be had.
    pub place: Place,
    /// The GPU.
    pub gpu: GpuName,
    /// Requested bytes, if known. The allocator requests whole pages, which may hold several values.
    pub asked: Option<u64>,
    /// Memory of this process's allocator on the GPU.
    pub held: Option<HeldMemory>,
    /// Total and free memory of the GPU.
    pub device: Option<DeviceMemory>,
    /// The Plan of the program, where one ran.
    pub plan: Option<Arc<Plan>>,
    /// Lines of the layout that reduce the peak, and the reduced peak in bytes; filled in by a caller that knows the
    /// layout.
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
    /// The rank, and where in a program the error came up. Kernels run later than they are launched: it may be that of an earlier
    /// step.
    pub place: Place,
    /// The GPU.
    pub gpu: GpuName,
    /// The driver's name of the error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub error: String,
    /// Findings of NVML.
    pub health: GpuHealth,
}

impl fmt::Display for GpuFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} reported {}", self.place, self.gpu, self.error)?;
        self.health.findings().iter().try_for_each(|found| write!(f, "; {found}"))
    }
}

/// A GPU that did not finish its work, with the findings of NVML.
#[derive(Clone, Debug)]
pub struct SilentGpu {
    /// The GPU.
    pub name: GpuName,
    /// Findings of NVML.
    pub health: GpuHealth,
}

/// ` on GPU 0 (0000:1b:00.0)`, where it is known.
fn on_gpu(gpu: Option<&SilentGpu>) -> String {
    gpu.map(|gpu| format!(" on {}", gpu.name)).unwrap_or_default()
}

/// Findings on a GPU, as the continuation of a sentence.
fn findings(gpu: Option<&SilentGpu>) -> String {
    let all = gpu.map(|gpu| gpu.health.findings()).unwrap_or_default();
    all.iter().map(|found| format!("; {found}")).collect()
}

/// ` for step 3`, where it is known.
fn for_step(number: Option<u64>) -> String {
    number.map(|n| format!(" for step {n}")).unwrap_or_default()
}

/// Errors of a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A step of the Plan contradicts itself or the buffers.
    #[error("{place}: invalid plan: {problem}")]
    Plan {
        /// Its place.
        place: Box<Place>,
        /// The contradiction.
        problem: String,
    },
    /// A kernel cannot do what a step asks for.
    #[error("{place}: {source}")]
    Kernel {
        /// Its place.
        place: Box<Place>,
        /// The kernel's error.
        source: KernelError,
    },
    /// A collective failed.
    #[error("{place}: {source}")]
    Comm {
        /// Its place.
        place: Box<Place>,
        /// The transport's error.
        source: CommError,
    },
    /// The elements of a device could not be read, or it could not be started.
    #[error("{place}: the device failed: {problem}")]
    Device {
        /// Its place.
        place: Box<Place>,
        /// The device's message.
        problem: String,
    },
    /// A value of a dtype that the device does not compute with.
    #[error("rank {}: `{}`{} is {dtype}, which the device does not compute with", place.rank, place.value, at_line(place))]
    DType {
        /// The device, and the value.
        place: Box<Place>,
        /// The missing dtype.
        dtype: DType,
    },
    /// A GPU has no memory left.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// A GPU reported an error.
    #[error("{0}")]
    Gpu(Box<GpuFault>),
    /// A device panicked.
    #[error("{place}: internal error: {message}")]
    Panicked {
        /// Its place.
        place: Box<Place>,
        /// The message of the panic.
        message: String,
    },
    /// Whoever gives the inputs failed.
    #[error("rank {rank}: no input data: {message}")]
    Provider {
        /// The device.
        rank: usize,
        /// Why, in the provider's words.
        message: String,
    },
    /// An input does not fit the Plan.
    #[error("rank {rank}: input `{name}`: {problem}")]
    Input {
        /// The device.
        rank: usize,
        /// Name of the input.
        name: String,
        /// The problem.
        problem: String,
    },
    /// A parameter or optimizer state is missing or does not fit.
    #[error("rank {rank}: `{name}`: {problem}")]
    State {
        /// The device.
        rank: usize,
        /// Path of the parameter or optimizer state.
        name: String,
        /// The problem.
        problem: String,
    },
    /// No program of that number is loaded.
    #[error("rank {rank}: no program {program} is loaded")]
    NoProgram {
        /// The device.
        rank: usize,
        /// The number asked for.
        program: usize,
    },
    /// An earlier error left the device without its parameters.
    #[error("rank {rank} cannot go on after an earlier error")]
    Broken {
        /// The device.
        rank: usize,
    },
    /// A device, or its thread, could not be started.
    #[error("cannot start rank {rank}: {message}")]
    Start {
        /// The device.
        rank: usize,
        /// Why not.
        message: String,
    },
    /// A device did not finish its work in time.
    #[error(
        "rank {rank}{} has not ended what it does{} after {seconds} s: a kernel that never ends, or a GPU that is lost (the system's \
         log names such errors of GPUs: `dmesg | grep -i xid`); `--timeout` gives more time{}",
        on_gpu(gpu.as_deref()),
        for_step(*step_number),
        findings(gpu.as_deref())
    )]
    Silent {
        /// The device.
        rank: usize,
        /// The limit.
        seconds: u64,
        /// The step that it was asked for last.
        step_number: Option<u64>,
        /// The GPU that it is, where it is one.
        gpu: Option<Box<SilentGpu>>,
    },
    /// The thread of a device is gone.
    #[error("the thread of rank {rank} has ended")]
    Gone {
        /// The device.
        rank: usize,
    },
}

impl ExecError {
    /// Whether it is a consequence of another device's error, not the cause.
    pub fn is_consequence(&self) -> bool {
        match self {
            ExecError::Comm { source, .. } => source.is_consequence(),
            ExecError::Gone { .. } | ExecError::Broken { .. } => true,
            _ => false,
        }
    }
}
