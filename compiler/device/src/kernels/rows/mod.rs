//! Steps along rows as one kernel (ADR 50).
//!
//! - `expr`: what the steps compute, as one expression; [`passes`]: what of it is computed in which pass over a row.
//! - [`call`]: what is known of a group, and for which groups there is a kernel.

pub mod call;
mod expr;
pub mod passes;

pub use call::RowCall;
pub use expr::ResultOf;
pub(crate) use expr::{FOLDS, RowExpr, RowResult};
