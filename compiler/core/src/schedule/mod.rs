//! From an SPMD program to a Plan: primitive steps, buckets of collectives, fused element-wise steps, buffer lifetimes.

mod bundle;
mod fuse;
mod lifetimes;
mod lower;
mod verify;

pub use bundle::bundle;
pub use fuse::fuse;
pub use lifetimes::lifetimes;
pub use lower::{LineOf, lower};
pub use verify::verify_plan;
