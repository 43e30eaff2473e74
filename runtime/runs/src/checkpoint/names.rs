//! The names of the files in a folder of checkpoints.

use meshwright_files::durable::TEMP;

/// The file that notes the best checkpoint.
pub(super) const BEST: &str = "best.json";

/// What the names of a step's files begin with.
pub(super) fn stem(step: u64) -> String {
    format!("step-{step:010}")
}

/// The step of a manifest.
pub(super) fn manifest_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok()
}

/// The step of a file of tensors.
pub(super) fn data_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".safetensors")?.split_once('-')?.0.parse().ok()
}

/// Whether a store writes a file of that name.
pub fn stores(name: &str) -> bool {
    manifest_step(name).is_some() || data_step(name).is_some() || name == BEST || name.starts_with(TEMP)
}
