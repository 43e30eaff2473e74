//! What a training is made of: optimizers, losses, data, evaluations, and going on.

pub(super) mod datasets;
pub(super) mod epochs;
pub(super) mod evaluation;
pub(super) mod groups;
pub(super) mod loss_parts;
pub(super) mod optimizers;
pub(super) mod resume;
pub(super) mod settings;
pub(super) mod text;
