//! Folds of scalar expressions along dims, as kernels of our own: sums, maxima and minima of operands, of their
//! products, or of inlined element-wise values (ADR 43). Floats are folded in `f32`, in an order that depends on shapes
//! alone.
//!
//! - [`launch`]: the launches; `kernel`: the kernel.

mod kernel;
mod launch;

pub(super) use kernel::{folded, identity};
pub(super) use launch::{chunk_memory, fold};
