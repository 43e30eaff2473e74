//! The compiler proper: names to a graph, the graph to a training step, the step to an SPMD program, that to a Plan.
//!
//! **Invariant:** pure. No I/O, no clock, no environment, no hash order: the same texts give a byte-identical Plan.

pub mod compile;
mod declarations;
pub mod explain;
pub mod layout;
pub mod lowering;
mod model_flops;
mod named_values;
pub mod names;
pub mod partition;
pub mod passes;
pub mod print;
pub mod program;
pub mod reference;
pub mod resolve;
mod rows;
pub mod step;
pub mod verify;
pub mod why;

pub use compile::{
    CompileOptions, Compiled, PASSES, SharedStep, compile, compile_with, diagnose, evaluates_in_microbatches,
};
pub use layout::{Layout, check_devices, layout};
pub use lowering::LossParts;
pub use model_flops::{model_flops, model_flops_wide};
pub use passes::rebind::NeedsText;
pub use program::{
    ClipSpec, LossDecl, Objective, ParamDecl, Program, Reports, Settings, StateDecl, TrainSpec, Turn,
};
pub use step::decode::{Branching, DecodedOutput, Decoding, NewPositions, branch, decode};
pub use step::evaluation::{Accumulate, Evaluation, evaluation, prediction, refused_outputs};
pub use step::loss_scaling::{LOSS_SCALE, LossScaling, STEP_SKIPPED, is_loss_scaling_state, is_skip_count};
pub use step::optimizers::Optimizer;
pub use step::scale_history::{
    DEFAULT_STEPS as DEFAULT_SCALE_HISTORY, MOST_STEPS as MOST_SCALE_HISTORY, is_scale_history,
};
pub use step::specialize::specialized;
pub use step::stack_part::StackPart;
pub use step::step_graph::{OutputKind, StepGraph, StepOutput};
pub use step::training::{GRADIENT_NORM, examined_step, learning_rate, training_step};
