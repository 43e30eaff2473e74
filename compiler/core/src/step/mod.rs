//! From a program to the graph of one step: of training, of evaluation, or of decoding.

pub mod autodiff;
pub mod decode;
pub mod evaluation;
pub(super) mod factor_scales;
pub(super) mod layers;
pub mod loss_scaling;
pub mod optimizers;
pub mod precision;
mod rounding;
pub mod scale_history;
pub mod specialize;
pub(super) mod stack_part;
pub mod step_graph;
mod tf32_factors;
pub mod training;
