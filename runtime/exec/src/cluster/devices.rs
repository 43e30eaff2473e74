//! On what a Plan runs.

use crate::error::{ExecError, SilentGpu};
use meshwright_comm::nccl::{LaunchOrder, NcclOptions, NcclTransport};
use meshwright_comm::{Timeouts, Transport};
use meshwright_gpu::load::Paths;

/// What runs the steps of a device that is a thread of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuBackend {
    /// Kernels of this crate on the host's memory, and matmuls of the crate `gemm`.
    #[default]
    Native,
    /// Burn's operations alone: slower; the oracle of the kernels for GPUs.
    Burn,
    /// The launches of a GPU, each by a plain kernel: slow; the reference for device plans of GPUs.
    Reference,
}

/// What a rank of this process runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A thread of the host.
    Cpu(CpuBackend),
    /// The GPU of that number.
    Cuda(usize),
    /// What GPUs run, compiled for the host: to test it where there is no GPU.
    CubeCpu,
}

impl Default for DeviceKind {
    fn default() -> Self {
        DeviceKind::Cpu(CpuBackend::Native)
    }
}

impl DeviceKind {
    /// The device of another rank of this process, counted from 0: of GPUs the one that many further on.
    pub fn of_rank(self, local: usize) -> DeviceKind {
        match self {
            DeviceKind::Cuda(first) => DeviceKind::Cuda(first + local),
            same => same,
        }
    }

    /// The same among so many GPUs, counted round and round: for ranks that share them.
    pub fn among(self, gpus: Option<usize>) -> DeviceKind {
        match (self, gpus) {
            (DeviceKind::Cuda(i), Some(n)) if n > 0 => DeviceKind::Cuda(i % n),
            (same, _) => same,
        }
    }

    /// Whether the device computes what it was told while its host does something else; and what stands in for it in tests.
    pub fn runs_ahead(self) -> bool {
        self != DeviceKind::Cpu(CpuBackend::Native)
    }

    /// What is known of the device where it does not answer; none where it is no GPU.
    pub(crate) fn silent(self) -> Option<SilentGpu> {
        match self {
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda(index) => crate::backend::burn::cube::faults::silent(index),
            _ => None,
        }
    }

    /// Whether each device chooses among kernels by timing them, so that two may compute the same to other last bits.
    pub fn chooses_kernels(self) -> bool {
        matches!(self, DeviceKind::Cuda(_))
    }
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceKind::Cpu(CpuBackend::Native) => f.write_str("cpu"),
            DeviceKind::Cpu(CpuBackend::Burn) => f.write_str("cpu with Burn's operations"),
            DeviceKind::Cpu(CpuBackend::Reference) => f.write_str("cpu with the launches of a GPU"),
            DeviceKind::Cuda(i) => write!(f, "cuda:{i}"),
            DeviceKind::CubeCpu => f.write_str("cubecl on the cpu"),
        }
    }
}

/// How GPUs communicate.
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
    /// What a device of that kind communicates by, over the transport of the host; a world of one has nobody to talk to. NCCL and
    /// the driver are looked for in `libraries`.
    ///
    /// All devices of the world must call it at once: they meet.
    pub(crate) fn over(
        self,
        transport: Box<dyn Transport>,
        kind: DeviceKind,
        timeouts: Timeouts,
        libraries: Paths,
    ) -> Result<Box<dyn Transport>, ExecError> {
        let launch_order = match self {
            DeviceCollectives::Nccl => LaunchOrder::Events,
            DeviceCollectives::NcclSync => LaunchOrder::HostSync,
            DeviceCollectives::Staged => return Ok(transport),
        };
        let DeviceKind::Cuda(gpu) = kind else { return Ok(transport) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_gpus_of_their_own_or_go_round() {
        let of = |local, gpus| DeviceKind::Cuda(1).of_rank(local).among(gpus);
        assert_eq!([of(0, None), of(2, None)], [1, 3].map(DeviceKind::Cuda));
        assert_eq!([of(0, Some(2)), of(1, Some(2)), of(2, Some(2))], [1, 0, 1].map(DeviceKind::Cuda));
        assert_eq!(DeviceKind::default().of_rank(3).among(Some(1)), DeviceKind::default());
    }
}
