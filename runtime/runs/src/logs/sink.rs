//! What every other form of the events is: something that takes them one by one.

use crate::metrics::Event;
use meshwright_files::Checked;
use std::path::Path;

/// Where events go.
pub trait EventSink: Send + Sync {
    /// Appends an event, whose line of `metrics.jsonl` is `line`.
    fn append(&mut self, line: &str, event: &Event) -> Checked<()>;
}

/// What a log is opened with.
pub struct LogStart<'a> {
    /// The folder of the run.
    pub run: &'a Path,
    /// The lines of `metrics.jsonl` that are kept.
    pub kept: &'a [u8],
    /// Steps done.
    pub step: u64,
    /// Names of what is measured in a step besides the loss.
    pub train: Vec<String>,
    /// Names of what is measured in an evaluation besides the loss.
    pub eval: Vec<String>,
    /// Whether the loss is scaled.
    pub scaled: bool,
}
