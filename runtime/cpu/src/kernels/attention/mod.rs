//! Attention in tiles of queries by keys: scores are never stored beyond a tile. Products of tiles are matrix products of their
//! own; what is done to scores in between is a map, prepared for the shapes of tiles.
//!
//! Tiles whose scores are all one number, which positions alone decide (a causal mask), come last: where the exponential of
//! that number less the greatest of each row is 0, they are left out, which changes no bit. Where it is not, such as in a row
//! whose other keys are masked too, they count like any other.
//!
//! Forward, a task is a tile of queries at one position of the outer dims (such as batch and heads), and goes over the keys with
//! a running maximum. Backward, a task is all of the positions of the outer dims that queries, keys and values share.

mod backward;
mod forward;
mod output;
mod prepare;
mod run;
mod tile;

pub use prepare::{AttentionAccess, AttentionKernel, AttentionPlan};
