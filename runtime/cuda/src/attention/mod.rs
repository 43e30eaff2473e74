//! Attention as kernels: scores are never in memory. Half types and numbers of TF32 are multiplied on tensor
//! cores, other `f32` by fused multiply-adds, without rounding.
//!
//! - [`launch`]: the launches.
//! - `forward`, `backward`, `bias`: the kernels; `scores`: what kernels are compiled for; `elements`: what is read beside
//!   queries, keys and values; `draws`: what is drawn; `slopes`: the gradients of scores; `decide`: which tiles are left out.
//! - `stream`: tiles that come while others are looked at; `staged`: what belongs to their rows; `load`: how rows come into them;
//!   `layout`: how they lie in shared memory; `tiles`: their matmuls, of `f32` in `exact`, of TF32 in `rounded`.

mod backward;
mod bias;
mod decide;
mod draws;
mod elements;
mod exact;
mod forward;
mod launch;
mod layout;
mod load;
mod rounded;
mod scores;
mod slopes;
mod staged;
mod stream;
mod tiles;

pub(super) use launch::is_there;
