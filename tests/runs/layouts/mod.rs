//! A layout changes no result.

pub(super) mod agree;
pub(super) mod every_layout;
pub(super) mod gradients;
pub(super) mod long_sequences;
pub(super) mod pipeline;
pub(super) mod provenance;
pub(super) mod random_evaluations;
pub(super) mod reduce_grads;
pub(super) mod windows;
