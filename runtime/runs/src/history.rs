//! The history of a run: a line of `history.jsonl` each time that a process starts it or goes on with it, and when it fails.

use crate::run_dir::read_history;
use meshwright_files::Checked;
use serde::Deserialize;
use std::path::Path;

/// The event of a run that ended by an error.
pub const FAILED: &str = "failed";

/// What the history of a run tells of its processes.
#[derive(Debug, Default, PartialEq)]
pub struct Ending {
    /// After how many steps each began.
    pub starts: Vec<u64>,
    /// The error by which the last one ended, if it did.
    pub error: Option<String>,
}

/// Reads the history of the run in a folder. Lines that a crash has torn are left out.
///
/// # Errors
///
/// E0511 where it cannot be read.
pub fn ending(run: &Path) -> Checked<Ending> {
    Ok(ending_of(&read_history(run)?))
}

fn ending_of(text: &[u8]) -> Ending {
    #[derive(Deserialize)]
    struct HistoryLine {
        event: String,
        #[serde(default)]
        step: u64,
        error: Option<String>,
    }
    let mut out = Ending::default();
    for event in text.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice::<HistoryLine>(l).ok()) {
        out.error = event.error.filter(|_| event.event == FAILED);
        if event.event != FAILED {
            out.starts.push(event.step);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_tells_how_the_last_process_ended() {
        let start = "{\"event\":\"start\",\"step\":0,\"model\":\"m\"}\n";
        let failed = "{\"event\":\"failed\",\"error\":\"E0517: why\"}\n";
        let resumed = "{\"event\":\"resume\",\"step\":7}\n";
        let of = |text: String| ending_of(text.as_bytes());
        let one = of(format!("{start}{failed}"));
        assert_eq!(one, Ending { starts: vec![0], error: Some("E0517: why".into()) });
        let two = of(format!("{start}{failed}{resumed}{{\"eve"));
        assert_eq!(two, Ending { starts: vec![0, 7], error: None });
    }
}
