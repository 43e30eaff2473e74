//! The history of a run, read back: its starts, and its ends by an error.

use crate::cluster_job::ClusterJob;
use crate::run_dir::read_history;
use meshwright_files::Checked;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A line of `history.jsonl`. What an earlier version did not note is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunEvent {
    /// `start`, `resume`, `import`, `failed`.
    pub event: String,
    /// When, in RFC 3339.
    pub time: Option<String>,
    /// Steps that were done then.
    pub step: u64,
    /// Of Meshwright.
    pub version: String,
    /// The mesh of this start.
    pub mesh: String,
    /// `threads`, `mpi`.
    pub transport: String,
    /// How many processes there were.
    pub processes: usize,
    /// The words of the command, the program among them.
    pub arguments: Vec<String>,
    /// The error of an end, with its code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The job of a cluster that it was part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<ClusterJob>,
}

impl RunEvent {
    /// The history of the run in a folder, oldest first. Lines that a crash has torn are left out.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read.
    pub fn read_all(run: &Path) -> Checked<Vec<RunEvent>> {
        let text = read_history(run)?;
        let mut events: Vec<RunEvent> =
            text.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
        for e in &mut events {
            // A time that is none tells nothing.
            e.time = e.time.take().filter(|t| crate::clock::seconds_of(t).is_some());
        }
        Ok(events)
    }

    /// Whether it ended a process.
    pub fn is_failure(&self) -> bool {
        self.event == "failed"
    }
}
