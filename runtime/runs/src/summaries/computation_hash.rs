//! What a run computes, on whatever devices.

use crate::run_dir::read_texts;
use crate::settings::RunSettings;
use sha2::Digest;
use std::path::Path;

/// The SHA-256 of all that decides what a run computes but its layout and length: its texts, sizes and consts, the type of its
/// numbers, its seed, its data and where its first values came from. Runs with the same differ in rounding alone.
pub(super) fn computed(run: &Path, s: &RunSettings) -> String {
    let mut hash = sha2::Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    // One that has lost its texts is compared by the rest.
    for text in read_texts(run, s.used.len()).map(|t| t.models).unwrap_or_default() {
        add(&text);
    }
    for text in [&s.model, &s.precision, &s.seed, &s.fingerprint, &s.examples.to_string()] {
        add(text);
    }
    s.dims.iter().for_each(|(name, size)| add(&format!("{name}={size}")));
    s.consts.iter().for_each(|(name, value)| add(&format!("{name}={:x}", value.to_bits())));
    add(&s.init.as_ref().map_or(String::new(), |init| serde_json::to_string(&init).unwrap_or_default()));
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
