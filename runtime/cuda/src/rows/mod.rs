//! Steps along rows as one kernel: a cube, or a part of one, reads a row, folds it as often as is asked for, and computes with what the folds
//! gave (ADR 50). So norms, softmax and cross-entropy go through memory once.
//!
//! - [`launch`]: the launch; `kernel`: the kernel.

mod kernel;
mod launch;

pub(super) use launch::compute;
