//! Attention as kernels on tensor cores: scores are never in memory. For half types alone: `f32` is multiplied without
//! rounding, which tensor cores cannot.
//!
//! - [`launch`]: the launches.
//! - `forward`, `backward`, `bias`: the kernels; `scores`: what kernels are compiled for; `elements`: what is read beside
//!   queries, keys and values; `draws`: what is drawn; `slopes`: the gradients of scores; `decide`: which tiles are left out.
//! - `stream`: tiles that come while others are looked at; `staged`: what belongs to their rows; `load`: how rows come into them;
//!   `tiles`: how they lie in shared memory, and their products.

mod backward;
mod bias;
mod decide;
mod draws;
mod elements;
mod forward;
mod launch;
mod load;
mod scores;
mod slopes;
mod staged;
mod stream;
mod tiles;

pub(super) use launch::is_there;
