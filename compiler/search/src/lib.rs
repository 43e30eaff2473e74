//! The layout of a model that is fastest on a machine, with a certificate.
//!
//! **Invariants:**
//! - It writes the text of layouts and compiles it, and interprets no rule.
//! - Pure: no I/O, no clock, no chance. The answer does not depend on the number of threads.

pub mod axis_bounds;
pub mod base;
pub mod base_bound;
pub mod best_first;
pub mod bound;
mod climb;
pub mod compiled;
pub mod levels;
mod memory;
pub mod neighbors;
pub mod outcome;
pub mod pipes;
pub mod report;
pub mod sample;
pub mod shape;
pub mod space;
pub mod text;
mod tree;
pub mod work;
