//! Convolutions and pools as kernels of their own, which never store the elements under windows (ADR 51).
//!
//! - [`launch`]: the launches of convolutions; `kernel`: they as products of matrices on tensor cores; `gather`: how their
//!   factors come into tiles; `registers` and `cells`: the same in registers; `each`: those that fill no tile.
//! - `pool`: folds and their transposes; [`pool_launch`]: their launch.
//! - `window_map`: which element a window meets.

mod cells;
mod few_columns;
mod gather;
mod kernel;
mod launch;
mod pool;
mod pool_launch;
mod registers;
mod window_map;
