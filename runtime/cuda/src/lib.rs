//! Devices that are NVIDIA's GPUs, and their stand-in on the host: kernels that are compiled for the device at hand, cuBLASLt's matmuls, and
//! operations of Burn where there is neither. Without the cargo feature `cuda` this crate is empty.
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
use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use device::{GpuBackend, faults, watch};
use matmul::blas;
use meshwright_device::target::Target;
use meshwright_exec::watch::Launches;
use meshwright_exec::{DeviceKind, ExecError, Platform, Programs, SilentGpu};
use meshwright_gpu::driver::Driver;
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
        Ok(Programs::new(GpuBackend::open(gpu, rank, libraries)?))
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

fn target_of(device: &CubeDevice) -> Target {
    match device {
        CubeDevice::Cuda(gpu) => {
            let opened = blas::capability(gpu.index);
            Target {
                tensor_cores: attention::is_there(&device.client()),
                ..Target::cuda(opened.unwrap_or_default(), opened.is_some())
            }
        }
        _ => Target::compiled_on_host(),
    }
}

/// Makes CubeCL store tuned and compiled kernels with other measurements of GPUs, for each driver separately, so that a
/// later start does neither. A `cubecl.toml` with a path takes precedence.
fn keep_tuned(libraries: &Paths) {
    let Some(folder) = &libraries.cache else { return };
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Directory(folder.join("cubecl"));
        config.compilation.cache = true;
        if let Ok(version) = Driver::open(libraries).and_then(|driver| driver.version()) {
            config.environment.name = format!("cuda-{version}");
        }
    }
    // The first device of a process sets it for all.
    CubeClRuntimeConfig::try_set(config);
}
