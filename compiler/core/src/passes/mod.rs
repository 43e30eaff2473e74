//! Passes on graphs: from a step to a step that computes the same, before it is partitioned.

pub(super) mod accumulators;
pub(super) mod hoist;
pub(super) mod joined_shifts;
pub(super) mod linear;
pub(super) mod match_patterns;
pub(super) mod microbatches;
pub mod normalize;
pub(super) mod order;
pub(super) mod ordered_norms;
pub(super) mod rebind;
pub(super) mod recompute;
pub(super) mod scales;
pub(super) mod squares;
pub(super) mod stages;
pub mod unroll;
pub(super) mod weights;
pub(super) mod working_copies;
