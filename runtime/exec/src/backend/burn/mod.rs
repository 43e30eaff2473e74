//! Devices that run operations of Burn, and kernels that are compiled for them: GPUs.
//!
//! The results are those of the native kernels but for rounding. What the operations are is in the device plan
//! (`meshwright_device`), with how pairs, truth values and random values are stored.

mod backend;
#[cfg(any(feature = "cuda", test))]
mod blas;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
pub(crate) mod cube;
mod dtypes;
mod host;
mod iteration;
mod memory;
mod on_burn;
mod reference;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod stand_in;
mod transfer;

#[cfg(test)]
pub(crate) use dtypes::check as check_dtypes;

use burn_flex::{Flex, FlexDevice};
use host::HostLibrary;
use meshwright_gpu::load::Paths;
use on_burn::OnBurn;

/// The launches of a GPU on the host, each by a plain kernel.
pub(crate) fn reference() -> OnBurn<Flex> {
    OnBurn::new(FlexDevice, HostLibrary::Kernels)
}

/// What GPUs run, on the host. Tests have a stand-in for cuBLASLt where `libraries` names one.
pub(crate) fn flex(libraries: &Paths) -> OnBurn<Flex> {
    #[cfg(test)]
    let library = stand_in::open(libraries).map_or(HostLibrary::Nothing, HostLibrary::Products);
    #[cfg(not(test))]
    let library = {
        let _ = libraries;
        HostLibrary::Nothing
    };
    OnBurn::new(FlexDevice, library)
}
