//! The compiler proper: names to a graph, the graph to a training step, the step to an SPMD program, that to a Plan.
//!
//! **Invariant:** pure. No I/O, no clock, no environment, no hash order: the same texts give a byte-identical Plan.

mod accumulators;
pub mod autodiff;
pub mod compile;
mod declared;
pub mod decode;
pub mod evaluation;
pub mod explain;
mod hoist;
pub mod layout;
mod linear;
pub mod loss_scaling;
mod match_patterns;
mod microbatches;
mod model_flops;
mod named;
pub mod normalize;
pub mod optimizers;
pub mod partition;
pub mod precision;
pub mod print;
pub mod program;
mod rebind;
mod recompute;
pub mod reference;
pub mod resolve;
mod rows;
pub mod schedule;
pub mod specialize;
mod squares;
mod stack_part;
pub mod step_graph;
pub mod training;
pub mod unroll;
pub mod verify;
pub mod why;
mod working_copies;

pub use compile::{CompileOptions, Compiled, PASSES, compile, compile_with, diagnose};
pub use decode::{Branching, DecodedOutput, Decoding, NewPositions, branch, decode};
pub use evaluation::{Accumulate, Evaluation, evaluation, prediction};
pub use layout::{Layout, check_devices, layout};
pub use loss_scaling::{LOSS_SCALE, LossScaling, STEP_SKIPPED, is_loss_scaling_state, is_skip_count};
pub use model_flops::{model_flops, model_flops_wide};
pub use optimizers::Optimizer;
pub use program::{
    ClipSpec, LossDecl, Objective, ParamDecl, Program, Reports, Settings, StateDecl, TrainSpec, Turn,
};
pub use rebind::NeedsText;
pub use schedule::LossParts;
pub use specialize::specialized;
pub use stack_part::StackPart;
pub use step_graph::{OutputKind, StepGraph, StepOutput};
pub use training::{GRADIENT_NORM, examined_step, learning_rate, training_step};
