//! The kinds of devices.

use crate::engine::programs::Programs;
use crate::error::{ExecError, SilentGpu};
use crate::watch::{KernelWatch, KernelsBy, Launches};
use meshwright_comm::nccl::{LaunchOrder, NcclOptions, NcclTransport};
use meshwright_comm::{Timeouts, Transport};
use meshwright_device::target::Target;
use meshwright_gpu::load::Paths;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Makes devices of one kind: threads of the host, GPUs, or their stand-ins in tests. Each backend's crate has one.
pub trait Platform: fmt::Display + Send + Sync + 'static {
    /// The programs of a rank's device, without any program yet. `gpu` is the number of the GPU, if it is one;
    /// `libraries` are the paths of NVIDIA's libraries.
    ///
    /// # Errors
    /// If there is no such device.
    fn programs(&self, gpu: Option<usize>, rank: usize, libraries: &Paths) -> Result<Programs, ExecError>;

    /// The target of device plans for a GPU that has its programs; none for other devices.
    fn target(&self, gpu: Option<usize>) -> Option<Target> {
        let _ = gpu;
        None
    }

    /// Whether the device computes asynchronously to its host; also its stand-in in tests.
    fn runs_ahead(&self) -> bool {
        true
    }

    /// The state of a GPU that does not answer; none for other devices.
    fn silent(&self, gpu: Option<usize>) -> Option<SilentGpu> {
        let _ = gpu;
        None
    }

    /// Reports each launched kernel to `watched` until the returned value is dropped; none if kernels are not counted.
    fn observe(&self, watched: &Arc<Launches>) -> Option<Box<dyn Any + Send>> {
        let _ = watched;
        None
    }
}

/// The device of a rank of this process.
#[derive(Clone)]
pub struct DeviceKind {
    platform: Arc<dyn Platform>,
    /// Its number, of a GPU.
    gpu: Option<usize>,
}

impl DeviceKind {
    /// A device that a process can have any number of.
    pub fn new(platform: impl Platform) -> DeviceKind {
        DeviceKind { platform: Arc::new(platform), gpu: None }
    }

    /// The GPU of that number.
    pub fn gpu(platform: impl Platform, number: usize) -> DeviceKind {
        DeviceKind { platform: Arc::new(platform), gpu: Some(number) }
    }

    /// The device of another rank of this process, counted from 0: of GPUs the one that many further on, counted round and round
    /// where there are `gpus` that ranks share.
    pub fn of_rank(&self, local: usize, gpus: Option<usize>) -> DeviceKind {
        let round = |i: usize| gpus.filter(|n| *n > 0).map_or(i, |n| i % n);
        DeviceKind { platform: self.platform.clone(), gpu: self.gpu.map(|first| round(first + local)) }
    }

    /// The number of the GPU that it is.
    pub fn gpu_number(&self) -> Option<usize> {
        self.gpu
    }

    /// See [`Platform::target`].
    pub(crate) fn target(&self) -> Option<Target> {
        self.platform.target(self.gpu)
    }

    /// See [`Platform::runs_ahead`].
    pub fn runs_ahead(&self) -> bool {
        self.platform.runs_ahead()
    }

    /// See [`Platform::silent`].
    pub(crate) fn silent(&self) -> Option<SilentGpu> {
        self.platform.silent(self.gpu)
    }

    /// Counts the kernels that devices of this kind launch, until the returned value ends.
    pub fn watch_kernels(&self, by: KernelsBy) -> KernelWatch {
        KernelWatch::start(by, |watched| self.platform.observe(watched))
    }

    /// See [`Platform::programs`].
    pub(crate) fn programs(&self, rank: usize, libraries: &Paths) -> Result<Programs, ExecError> {
        self.platform.programs(self.gpu, rank, libraries)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(number) => write!(f, "{}:{number}", self.platform),
            None => write!(f, "{}", self.platform),
        }
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The transport between GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceCollectives {
    /// NCCL on the GPUs' own memory, ordered by events: the host does not wait.
    #[default]
    Nccl,
    /// NCCL, and the host waits before and after each collective.
    NcclSync,
    /// The host's transport, with a copy to the host and back.
    Staged,
}

impl DeviceCollectives {
    /// The transport between devices of that kind, over the transport of the host; a world of one needs none.
    /// `libraries` are the paths of NCCL and the driver.
    ///
    /// Collective: all devices of the world must call it.
    pub(crate) fn over(
        self,
        transport: Box<dyn Transport>,
        kind: &DeviceKind,
        timeouts: Timeouts,
        libraries: Paths,
    ) -> Result<Box<dyn Transport>, ExecError> {
        let launch_order = match self {
            DeviceCollectives::Nccl => LaunchOrder::Events,
            DeviceCollectives::NcclSync => LaunchOrder::HostSync,
            DeviceCollectives::Staged => return Ok(transport),
        };
        let Some(gpu) = kind.gpu_number() else { return Ok(transport) };
        if transport.size() == 1 {
            return Ok(transport);
        }
        let rank = transport.rank();
        // Both name the rank.
        let own = format!("rank {rank}: ");
        let failed = |message: String| ExecError::Start {
            rank,
            message: message.strip_prefix(&own).map(String::from).unwrap_or(message),
        };
        let gpu = u32::try_from(gpu).map_err(|e| failed(e.to_string()))?;
        let options = NcclOptions { paths: libraries, launch_order, timeouts, ..NcclOptions::default() };
        let made = NcclTransport::new(transport, gpu, &options).map_err(|e| failed(e.to_string()))?;
        Ok(Box::new(made))
    }
}
