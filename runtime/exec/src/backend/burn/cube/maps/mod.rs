//! Element-wise steps as one kernel each, whatever they read and write: half types, truth values and integers beside floats, operands in
//! any order of their dims or without some of them, several results, truth values that are drawn on the way (ADR 43).
//!
//! - [`call`]: what is known when a Plan is loaded, and for which steps there is a kernel.
//! - `walk`: how a kernel goes through its tensors, when their strides are known.
//! - [`launch`]: the operation of the fusion queue; `kernel`: the kernel.

mod call;
mod kernel;
mod launch;
mod walk;

pub(crate) use call::{MapCall, MapOperand};
pub(super) use launch::map;
