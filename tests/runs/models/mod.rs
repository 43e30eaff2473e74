//! Whole trainings of the models that ship, and of what models are made of.

pub(super) mod accuracy;
pub(super) mod hugging_face;
pub(super) mod imports;
pub(super) mod loops;
pub(super) mod published_models;
pub(super) mod standard_library;
pub(super) mod states;
pub(super) mod tiles;
pub(super) mod transformers;
