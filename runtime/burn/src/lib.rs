//! Devices of the host that run operations of Burn, for tests: the oracles of GPUs. And the code that they share with
//! GPUs: transfers between the host and a backend of Burn.
//!
//! **Invariant:** no code here decides anything: a device runs the launches of its device plan (`meshwright_device`),
//! which fixes the forms of pairs, truth values and random values. The results are those of the native kernels except
//! for rounding.

#[doc(hidden)]
pub mod blas;
pub mod dtypes;
mod host;
pub mod iteration;
pub mod memory;
mod reference;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod stand_in;
#[cfg(test)]
mod tests;
pub mod transfer;

use host::{Host, HostLibrary};
use meshwright_exec::{DeviceKind, ExecError, Platform, Programs};
use meshwright_gpu::load::Paths;
use std::fmt;

/// A thread of the host that runs Burn's operations alone: slower than the kernels of `meshwright_cpu`, and the oracle of those
/// for GPUs.
pub fn device() -> DeviceKind {
    DeviceKind::new(HostPlatform::Operations)
}

/// A thread of the host that runs the launches of a GPU, each by a plain kernel: slow; the reference for device plans of GPUs.
pub fn reference() -> DeviceKind {
    DeviceKind::new(HostPlatform::Launches)
}

/// The same launches as a GPU has that multiplies no FP8: its matmuls read factors of 8 bits as numbers of `bf16`.
pub fn reference_without_fp8() -> DeviceKind {
    DeviceKind::new(HostPlatform::LaunchesWithoutFp8)
}

/// The host's kernels besides Burn's operations.
#[derive(Clone, Copy)]
enum HostPlatform {
    Operations,
    Launches,
    LaunchesWithoutFp8,
}

impl fmt::Display for HostPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostPlatform::Operations => "cpu with Burn's operations",
            HostPlatform::Launches => "cpu with the launches of a GPU",
            HostPlatform::LaunchesWithoutFp8 => "cpu with the launches of a GPU without FP8",
        })
    }
}

impl Platform for HostPlatform {
    fn programs(&self, _: Option<usize>, _: usize, libraries: &Paths) -> Result<Programs, ExecError> {
        let library = match self {
            HostPlatform::Operations => products(libraries),
            HostPlatform::Launches => HostLibrary::Kernels { fp8: true },
            HostPlatform::LaunchesWithoutFp8 => HostLibrary::Kernels { fp8: false },
        };
        Ok(Programs::new(Host::new(library)))
    }
}

/// The library of matmuls: in tests a stand-in for cuBLASLt, if `libraries` names one.
fn products(libraries: &Paths) -> HostLibrary {
    #[cfg(test)]
    return stand_in::open(libraries).map_or(HostLibrary::Nothing, HostLibrary::Matmuls);
    #[cfg(not(test))]
    {
        let _ = libraries;
        HostLibrary::Nothing
    }
}
