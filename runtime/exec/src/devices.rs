//! On what a Plan runs.

/// How steps become operations of a device that is a thread of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lowering {
    /// Own kernels on the host's memory, and the backend's matrix products.
    #[default]
    Own,
    /// The backend's plain operations alone, as on GPUs. Slower; to test what GPUs run where there is none.
    Plain,
}

/// What a rank of this process runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A thread of the host.
    Cpu(Lowering),
    /// The GPU of that number.
    Cuda(usize),
    /// What GPUs run, compiled for the host: to test it where there is no GPU.
    CubeCpu,
}

impl Default for DeviceKind {
    fn default() -> Self {
        DeviceKind::Cpu(Lowering::Own)
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
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceKind::Cpu(Lowering::Own) => f.write_str("cpu"),
            DeviceKind::Cpu(Lowering::Plain) => f.write_str("cpu with plain operations"),
            DeviceKind::Cuda(i) => write!(f, "cuda:{i}"),
            DeviceKind::CubeCpu => f.write_str("cubecl on the cpu"),
        }
    }
}
