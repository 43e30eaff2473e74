//! Options of an NCCL transport.

use crate::Timeouts;
use meshwright_gpu::load::Paths;

/// Order of collectives and other work of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchOrder {
    /// By events, on the device. Needs a driver of CUDA 12.5, and a GPU for each rank of a process.
    #[default]
    Events,
    /// By waiting on the host: slower, and as simple as can be.
    HostSync,
}

/// Which calls are compared before they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Those until [`Transport::first_step_done`](crate::Transport::first_step_done).
    #[default]
    FirstStep,
    /// All.
    Always,
    /// None: calls that do not belong together hang until the timeout, or give wrong results.
    Never,
}

/// Options of an [`NcclTransport`](super::NcclTransport).
#[derive(Clone, Debug, Default)]
pub struct NcclOptions {
    /// Paths of the libraries.
    pub paths: Paths,
    /// Order of collectives. All ranks get [`LaunchOrder::HostSync`] if one of them needs it.
    pub launch_order: LaunchOrder,
    /// Limits of a rank's waits.
    pub timeouts: Timeouts,
    /// Which calls are compared.
    pub checks: Checks,
}
