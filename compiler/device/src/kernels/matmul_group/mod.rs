//! Matmuls of one shape that share a factor as one launch (ADR 74).
//!
//! - [`matmul_groups`]: which matmuls are a group; `form`: what the matmuls of a group have in common, and their call.
//! - [`call`]: the call.

pub mod call;
pub(crate) mod form;
pub mod matmul_groups;

pub use call::{GroupEpilogue, MatmulGroupCall};
