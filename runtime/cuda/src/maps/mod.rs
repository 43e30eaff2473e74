//! Element-wise steps as one kernel each, or several as one, whatever they read and write: half types, truth values and integers beside floats, operands in
//! any order of their dims or without some of them, several results, truth values that are drawn on the way (ADR 43). Ranges of tensors are put one after the other by the same kernel.
//!
//! - [`launch`]: the launch; `kernel`: the kernel.

mod kernel;
mod launch;

pub(super) use launch::MapRun;
pub(super) use launch::{join, map};
