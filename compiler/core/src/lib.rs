//! The compiler proper: names to a graph, the graph to a training step, the step to an SPMD program, that to a Plan.
//!
//! **Invariant:** pure. No I/O, no clock, no environment, no hash order: the same texts give a byte-identical Plan.

pub mod program;
pub mod resolve;

pub use program::{ClipSpec, LossDecl, Optimizer, ParamDecl, Program, Settings, TrainSpec};
