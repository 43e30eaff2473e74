//! Folds of scalar expressions along dims, as kernels of our own: sums, maxima and minima of what is read, of its products, or of whatever an
//! element-wise step would have written for them (ADR 43). Floats are folded in `f32`, in an order that depends on shapes alone.
//!
//! - [`call`]: what is known when a Plan is loaded, and for which folds there is a kernel.
//! - `spread` (beside the lowering): how many units share a result, and into how many chunks a long fold is cut.
//! - [`launch`]: the launches; `kernel`: the kernel.

mod call;
mod kernel;
mod launch;

pub(crate) use call::{FoldCall, FoldOperand};
pub(super) use kernel::{folded, identity};
pub(super) use launch::{chunk_memory, fold, is_there};
