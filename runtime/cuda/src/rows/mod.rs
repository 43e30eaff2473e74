//! Steps along rows as one kernel: a block, or a part of one, reads a row, folds it as often as the group requires, and
//! computes with the results (ADR 50). So norms, softmax and cross-entropy pass through memory once.
//!
//! - [`launch`]: the launch;
//! - `kernel`: the kernel; `shape`: its parameters; `columns`: its sums over rows; `staging`: long rows, which are copied ahead.

mod columns;
mod kernel;
mod launch;
mod shape;
mod staging;
