//! Costs of a Plan on a machine that need not exist here: seconds of a step, bytes of a device, a timeline.
//!
//! **Invariants:**
//! - Pure: no I/O, no clock, no chance. The same Plan and machine give the same bits.
//! - No name of a dim, a layer or a model is read.
//! - No number about a machine outside of a machine file.

pub mod collective;
pub mod dtype_rates;
pub mod engine;
pub mod estimate;
pub mod foreign;
pub mod kernels;
pub mod machine;
pub mod memory;
pub mod pipe;
mod pipe_memory;
pub mod pipeline;
pub mod project;
pub mod rates;
pub mod shape;
pub mod shipped_machines;
mod stages;
pub mod step;
pub mod timeline;
mod visible_scores;
pub mod work;
