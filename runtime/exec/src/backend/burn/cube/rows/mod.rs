//! Steps along rows as one kernel: a cube, or a part of one, reads a row, folds it as often as is asked for, and computes with what the folds
//! gave (ADR 50). So norms, softmax and cross-entropy go through memory once.
//!
//! - [`expr`]: what is computed, as one expression.
//! - [`call`]: what is known when a Plan is loaded, and for which groups of steps there is a kernel.
//! - [`passes`]: what is computed in which of the passes over a row, and what of it units keep for a later one.
//! - [`launch`]: the launch; `kernel`: the kernel.

mod call;
mod expr;
mod kernel;
mod launch;
mod passes;

pub(crate) use call::RowCall;
pub(crate) use expr::{FOLDS, ResultOf, RowExpr, RowResult};
pub(super) use launch::compute;
