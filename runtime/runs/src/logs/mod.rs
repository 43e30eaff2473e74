//! Other forms of a run's events, for other tools: written beside `metrics.jsonl`, or for Prometheus wherever it is read.

mod csv;
mod metrics_file;
mod prometheus;
mod sink;
mod tensorboard;

use meshwright_files::Checked;
pub use metrics_file::MetricsFile;
pub use prometheus::{RunFacts, RunState};
pub use sink::{EventSink, LogStart};
pub(crate) use tensorboard::FOLDER as TENSORBOARD;
pub use tensorboard::tensorboard_in;

/// A form of the events beside `metrics.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// `metrics.csv`: a row for each event.
    Csv,
    /// `tensorboard/`: event files of TensorBoard.
    Tensorboard,
}

/// Opens a log.
///
/// # Errors
///
/// E0511 where it cannot be written.
pub fn open(format: LogFormat, start: &LogStart<'_>) -> Checked<Box<dyn EventSink>> {
    Ok(match format {
        LogFormat::Csv => Box::new(csv::CsvLog::open(start)?),
        LogFormat::Tensorboard => Box::new(tensorboard::EventFile::open(start)?),
    })
}
