//! Steps as Burn's own operations, for backends whose storage the host cannot reach: GPUs.
//!
//! Native kernels work on slices of the host. Here every step but collectives becomes a list of tensor operations
//! (reshape, permute, matrix product, element-wise functions, folds, selections …) on this device's shapes, which any
//! backend of Burn runs, or a kernel of our own. The results are those of the native kernels but for rounding.
//!
//! - Truth values are stored as bytes, and are the backend's truth values within a step.
//! - A pair of value and index is stored as two tensors: the values in the dtype of what was folded, the indices as `I32`.
//!   So every fold is exact, of integers too, and no dtype is needed that GPUs lack. A dim of more than 2^31 - 1 elements
//!   cannot be counted, here as in the Plan's `I32` indices.
//! - Random values are the same bits as everywhere: devices that kernels are compiled for draw them, and the host for others.
//! - Sums of half types are computed in `F32`.
//! - An empty buffer has no tensor; a step that writes none does nothing.

mod attention;
mod backend;
#[cfg(any(feature = "cuda", test))]
mod blas;
mod blocks;
mod contract;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu"))]
pub(crate) mod cube;
mod dtypes;
mod emit;
#[cfg(feature = "cuda")]
mod epilogue;
#[cfg(feature = "cuda")]
mod fold;
mod functions;
mod host;
mod index;
mod int;
mod iteration;
mod lower;
mod map;
mod memory;
mod on_burn;
mod pairs;
mod reduce;
mod rows;
#[cfg(any(feature = "cuda", test))]
mod spread;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod stand_in;
mod transfer;
#[cfg(any(feature = "cuda", feature = "cubecl-cpu", test))]
mod walk;
mod windows;

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
