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
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod stand_in;
mod transfer;

#[cfg(test)]
pub(crate) use dtypes::check as check_dtypes;

use burn_flex::{Flex, FlexDevice};
use meshwright_gpu::load::Paths;
use on_burn::OnBurn;

/// What GPUs run, on the host. Tests have a stand-in for cuBLASLt where `libraries` names one.
pub(crate) fn flex(libraries: &Paths) -> OnBurn<Flex> {
    #[cfg(test)]
    let library = stand_in::open(libraries);
    #[cfg(not(test))]
    let library = {
        let _ = libraries;
        None
    };
    OnBurn::new(FlexDevice, library)
}
