//! Convolutions and pools as kernels of their own, which never store what windows cover (ADR 51).
//!
//! - [`call`]: what is known when a Plan is loaded, and for which windows there is a kernel.
//! - [`launch`]: the launches; `kernel`: convolutions as products of matrices; `gather`: how their factors come into tiles; `pool`: folds and their transposes.
//! - `slide`: which element a window meets.

mod call;
mod gather;
mod kernel;
mod launch;
mod pool;
mod slide;

pub(crate) use call::{ConvolveCall, ConvolveDims, PoolCall, WindowSlide};
pub(super) use launch::{convolve, pool};
pub(crate) use pool::PoolWork;
