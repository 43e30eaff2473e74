//! From an SPMD program to a Plan: primitive steps, buckets of collectives, fused element-wise steps, losses in parts,
//! collectives in flight, buffer lifetimes.

mod add_in_place;
mod attention;
mod bucket;
mod in_place;
mod lifetimes;
mod lower;
mod lower_bf16;
mod lower_repeat;
mod map_fusion;
mod overlap;
mod parts;
mod per_buffer;
mod rings;
mod row_maxima;
mod stagger;
mod stretches;
mod verify;
mod verify_lag;
mod verify_passes;
mod verify_root;

pub use bucket::bucket;
pub use in_place::in_place;
pub use lifetimes::lifetimes;
pub use lower::{LineOf, lower};
pub(crate) use lower_repeat::zeroed;
pub use map_fusion::fuse;
pub use overlap::{FLIGHT_BYTES, overlap};
pub use parts::{LossParts, in_parts};
pub use rings::rings;
pub use row_maxima::row_maxima;
pub use stagger::stagger;
pub use verify::{verify_order, verify_plan};
