//! Attention as one kernel (ADR 40, ADR 54).
//!
//! - [`space`]: the dims of scores in the order in which kernels count them.
//! - [`bounds`]: tiles that positions alone decide.
//! - [`tiles`]: the extents of tiles, by the widths of queries and values.
//! - [`call`]: the call of an attention, if there is a kernel for it.

pub mod bounds;
pub mod call;
pub mod space;
pub mod tiles;

pub(crate) use call::{AttentionBitsKey, AttentionFactors};
pub use call::{AttentionCall, AttentionDraws, AttentionInput, AttentionOutput, decided};
pub use tiles::{AttentionTiles, DECIDED};
