//! Steps along rows as one kernel (ADR 50).
//!
//! - [`row_groups`]: which steps are a group; `program`: its steps as one expression, and its call on a device.
//! - `expr`: the expression; [`passes`]: its split into passes over a row; [`call`]: the call, if there is a kernel for it.

pub mod call;
mod expr;
pub mod passes;
mod program;
pub mod row_groups;

pub use call::RowCall;
pub use expr::ResultOf;
pub(crate) use expr::{FOLDS, RowExpr, RowResult};
