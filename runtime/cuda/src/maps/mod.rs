//! Element-wise steps as one kernel each, or several as one, for any operands and results: half types, truth values and
//! integers besides floats, operands with permuted or missing dims, several results, and inlined draws of truth values
//! (ADR 43). The same kernel concatenates ranges of tensors.
//!
//! - [`launch`]: the launch; `kernel`: the kernel.

mod kernel;
mod launch;

pub(super) use launch::MapRun;
