//! Checkpoints: whole tensors by parameter path, free of any layout, that a crash can never leave half written.
//!
//! A checkpoint is two files: `step-N-HASH.safetensors` with the tensors and what else a run needs to go on, and
//! `step-N.json`, its manifest, with the size and SHA-256 of the first. Each is written under a temporary name, synced,
//! renamed, and made durable by syncing the folder; the manifest comes last and makes the checkpoint count. Only then is an
//! older one removed, its manifest first.
//!
//! **Invariant:** once [`Store::save`] has returned, that checkpoint or a later one loads, whatever is cut off at whatever
//! moment; before, the previous one does. What is loaded is one of them as it was saved, never a mixture.

mod edit;
mod encode;
mod names;
mod old_checkpoints;
mod saver;
mod store;
mod tensor_file;
mod tensor_source;
#[cfg(test)]
mod tests;

pub use edit::write_tensors;
pub use edit::{Difference, Exported, NewNames, compare, export, is_parameter};
pub use encode::AVERAGE;
pub use encode::{Checkpoint, EpochLosses, LogMark, Meta, TensorInfo, read_file};
pub use names::stores;
pub use saver::{Saver, not_finite};
pub use store::one_only;
pub use store::{Best, Entry, Loaded, NAME_A_RUN, Skipped, Store, Which};
pub use tensor_file::TensorFile;
pub use tensor_source::{INDEX, TensorSource};
