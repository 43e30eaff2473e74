//! Convolutions and pools as kernels of their own, which never store what windows cover (ADR 51).
//!
//! - [`call`]: what is known when a Plan is loaded, and for which windows there is a kernel.
//! - [`launch`]: the launches of convolutions; `kernel`: they as products of matrices on tensor cores; `gather`: how their factors come into tiles; `registers` and
//!   `cells`: the same in registers; `each`: those that fill no tile.
//! - `pool`: folds and their transposes; [`pool_launch`]: their launch.
//! - `window_map`: which element a window meets.

mod call;
mod cells;
mod each;
mod gather;
mod kernel;
mod launch;
mod pool;
mod pool_launch;
mod registers;
mod window_map;

pub(crate) use call::{ConvolveCall, ConvolveDims, PoolCall, WindowSlide};
pub(super) use launch::convolve;
pub(crate) use pool::PoolWork;
pub(super) use pool_launch::pool;
