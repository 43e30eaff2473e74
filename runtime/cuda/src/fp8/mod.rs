//! Factors of matmuls in FP8: values that are rounded and stored as bytes, by rows, by columns, or both in one launch.
//!
//! - `kernel`: the kernel.
//! - `launch`: its operands.

mod kernel;
mod launch;
