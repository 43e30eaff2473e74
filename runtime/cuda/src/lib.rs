//! Devices that are NVIDIA's GPUs, and their stand-in on the host: kernels that are compiled for the device at hand, cuBLASLt's
//! matmuls, and operations of Burn where there is neither. Without the cargo feature `cuda` this crate is empty.
//!
//! **Invariant:** a device computes what a launch says, for any program; the results are those of the native kernels
//! except for rounding.
#![cfg(feature = "cuda")]

mod attention;
mod device;
mod folds;
mod fp8;
mod index;
mod kernel;
mod maps;
mod matmul;
mod rows;
mod windows;

use burn_cubecl::CubeDevice;
use device::{GpuBackend, faults, target_of, watch};
use meshwright_device::target::Target;
use meshwright_exec::watch::Launches;
use meshwright_exec::{DeviceKind, ExecError, Platform, Programs, SilentGpu};
use meshwright_gpu::load::Paths;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The GPU of that number.
pub fn gpu(number: usize) -> DeviceKind {
    DeviceKind::gpu(CubePlatform::Cuda, number)
}

/// The kernels of GPUs, compiled for the host, to test them without a GPU. It needs the feature `cubecl-cpu`.
pub fn compiled_on_host() -> DeviceKind {
    DeviceKind::new(CubePlatform::Host)
}

/// The devices that kernels are compiled for.
#[derive(Clone, Copy)]
enum CubePlatform {
    Cuda,
    Host,
}

impl fmt::Display for CubePlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CubePlatform::Cuda => "cuda",
            CubePlatform::Host => "cubecl on the cpu",
        })
    }
}

impl Platform for CubePlatform {
    fn programs(&self, gpu: Option<usize>, rank: usize, libraries: &Paths) -> Result<Programs, ExecError> {
        let kind = gpu.map_or_else(compiled_on_host, self::gpu);
        Ok(Programs::new(GpuBackend::open(gpu, (rank, &kind), libraries)?))
    }

    fn target(&self, gpu: Option<usize>) -> Option<Target> {
        CubeDevice::cuda(gpu?).ok().map(|device| target_of(&device))
    }

    fn silent(&self, gpu: Option<usize>) -> Option<SilentGpu> {
        faults::silent(gpu?)
    }

    fn observe(&self, watched: &Arc<Launches>) -> Option<Box<dyn Any + Send>> {
        Some(watch::observe(watched))
    }
}
