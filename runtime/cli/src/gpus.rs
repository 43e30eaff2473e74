//! The GPUs of this build. Without the feature `cuda` there are none: whoever asks for one is told how to get it, once the
//! program that it should run has been found to be right.

#[cfg(feature = "cuda")]
pub(crate) use meshwright_cuda::{compiled_on_host, gpu};
#[cfg(not(feature = "cuda"))]
pub(crate) use missing::{compiled_on_host, gpu};

#[cfg(not(feature = "cuda"))]
mod missing {
    use meshwright_exec::{DeviceKind, ExecError, Platform, Programs};
    use meshwright_gpu::load::Paths;
    use std::fmt;

    /// The GPU of that number.
    pub(crate) fn gpu(number: usize) -> DeviceKind {
        DeviceKind::gpu(Missing("cuda"), number)
    }

    /// What GPUs run, compiled for the host.
    pub(crate) fn compiled_on_host() -> DeviceKind {
        DeviceKind::new(Missing("cubecl on the cpu"))
    }

    /// What this build cannot use, by its name.
    struct Missing(&'static str);

    impl fmt::Display for Missing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Platform for Missing {
        fn programs(&self, gpu: Option<usize>, rank: usize, _: &Paths) -> Result<Programs, ExecError> {
            let number = gpu.map_or(String::new(), |n| format!(":{n}"));
            let message = format!(
                "this build cannot use {self}{number}: it lacks the feature `cuda` (`cargo build --release --features cuda`)"
            );
            Err(ExecError::Start { rank, message })
        }
    }
}
