//! Other forms of a run's events, for other tools: each written beside `metrics.jsonl`.

mod csv;
mod tensorboard;

use crate::Checked;
use crate::metrics::Event;
use std::path::Path;

/// A form of the events beside `metrics.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `metrics.csv`: a row for each event.
    Csv,
    /// `tensorboard/`: event files of TensorBoard.
    Tensorboard,
}

/// Where events go.
pub(crate) trait EventSink: Send + Sync {
    /// Appends an event, of which `line` is the line of `metrics.jsonl`.
    fn append(&mut self, line: &str, event: &Event) -> Checked<()>;
}

/// What a log is opened with.
pub(crate) struct LogStart<'a> {
    /// The folder of the run.
    pub(crate) run: &'a Path,
    /// The lines of `metrics.jsonl` that are kept.
    pub(crate) kept: &'a [u8],
    /// Steps done.
    pub(crate) step: u64,
    /// Names of what is measured in a step beside the loss, and in an evaluation.
    pub(crate) train: Vec<String>,
    pub(crate) eval: Vec<String>,
}

/// Opens a log.
///
/// # Errors
///
/// E0511 where it cannot be written.
pub(crate) fn open(format: LogFormat, start: &LogStart<'_>) -> Checked<Box<dyn EventSink>> {
    Ok(match format {
        LogFormat::Csv => Box::new(csv::Table::open(start)?),
        LogFormat::Tensorboard => Box::new(tensorboard::EventFile::open(start)?),
    })
}
