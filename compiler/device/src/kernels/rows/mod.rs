//! Steps along rows as one kernel (ADR 50).
//!
//! - `expr`: the steps as one expression; [`passes`]: its split into passes over a row.
//! - [`call`]: the call of a group, if there is a kernel for it.

pub mod call;
mod expr;
pub mod passes;

pub use call::RowCall;
pub use expr::ResultOf;
pub(crate) use expr::{FOLDS, RowExpr, RowResult};
