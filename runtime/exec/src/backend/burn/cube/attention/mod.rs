//! Attention as kernels of its own, on tensor cores: scores are never in memory. For half types alone: what is `f32` is multiplied as
//! that, which tensor cores do not.
//!
//! - [`call`]: what is known when a Plan is loaded, and for which attentions there is a kernel.
//! - [`launch`]: the launches.
//! - `forward`, `backward`: the kernels; `scores`: what is read beside queries, keys and values; `draws`: what is drawn; `slopes`: the
//!   gradients of scores; `decide`: which tiles are left out.
//! - `staged`: what belongs to the rows of a tile; `load`: how rows come into tiles of shared memory; `tiles`: how they lie there, and their products.

mod backward;
mod call;
mod decide;
mod draws;
mod forward;
mod launch;
mod load;
mod scores;
mod slopes;
mod staged;
mod tiles;

pub(crate) use call::{AttentionCall, AttentionFactors, AttentionInput, AttentionOutput, decided};
pub(super) use launch::{attend, is_there};
