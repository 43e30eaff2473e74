//! The history of a run: a line of `history.jsonl` each time that a process starts it or goes on with it, and when it fails.

use crate::Checked;
use crate::clock::now;
use crate::cluster_job::ClusterJob;
use crate::device_failure::described;
use crate::failure::Failure;
use crate::project::Project;
use crate::run_dir::read_history;
use crate::training::TrainOptions;
use meshwright_diag::{Sources, codes};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::collections::BTreeMap;
use std::path::Path;

const FAILED: &str = "failed";

/// One start of a run: `{"event":"start","time":"2026-01-31T12:00:00Z","step":0,…}`.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryEvent<'a> {
    /// `start`, `resume`, or `import`.
    event: &'static str,
    /// When, in RFC 3339.
    time: String,
    /// Steps that were done then.
    step: u64,
    /// Of Meshwright.
    version: &'static str,
    /// The model's file and the SHA-256 of its text.
    model: &'a str,
    model_sha256: String,
    mesh: String,
    layout: Vec<&'a str>,
    precision: &'static str,
    /// All consts: those that only `train` reads may change where a run goes on.
    consts: &'a BTreeMap<String, f64>,
    transport: &'a str,
    processes: usize,
    /// The words of the command.
    arguments: &'a [String],
    /// The job of a cluster that it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a ClusterJob>,
}

impl<'a> HistoryEvent<'a> {
    /// What happened after so many steps.
    pub(crate) fn new(
        (project, sources): (&'a Project, &'a Sources),
        options: &'a TrainOptions,
        (event, step): (&'static str, u64),
    ) -> Self {
        let model = project.texts.model;
        let sha256 = sha2::Sha256::digest(sources.text(model).as_bytes());
        HistoryEvent {
            event,
            time: now(),
            step,
            version: env!("CARGO_PKG_VERSION"),
            model: sources.name(model),
            model_sha256: sha256.iter().map(|b| format!("{b:02x}")).collect(),
            mesh: project.layout.mesh.option(),
            layout: project.layout.rules.iter().map(|r| r.text.as_str()).collect(),
            precision: project.program.float.name(),
            consts: &project.program.consts,
            transport: &options.devices.asked.transport,
            processes: options.devices.processes.count(),
            arguments: &options.arguments,
            job: options.job.as_ref(),
        }
    }
}

/// The end of a run by an error: `{"event":"failed","time":"2026-01-31T12:00:00Z","error":"E0517: the loss …"}`.
#[derive(Debug, Serialize)]
pub(crate) struct FailureEvent {
    event: &'static str,
    time: String,
    error: String,
}

impl FailureEvent {
    /// Of a failure that happens now.
    pub(crate) fn now(failure: &Failure) -> FailureEvent {
        let error = match failure {
            Failure::Diagnostics(found) => {
                let first = found.iter().find(|d| d.is_error()).or(found.first());
                first.map_or(String::new(), |d| format!("{}: {}", d.code.id, d.message))
            }
            Failure::Exec(e) => {
                let d = described(e);
                format!("{}: {}", d.code.id, d.message)
            }
            Failure::Elsewhere => format!("{}: another process of the run failed", codes::E0520.id),
        };
        FailureEvent { event: FAILED, time: now(), error }
    }
}

/// What the history of a run tells of its processes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ending {
    /// After how many steps each began.
    pub(crate) starts: Vec<u64>,
    /// The error by which the last one ended, if it did.
    pub(crate) error: Option<String>,
}

/// Reads the history of the run in a folder. Lines that a crash has torn are left out.
///
/// # Errors
///
/// E0511 where it cannot be read.
pub(crate) fn ending(run: &Path) -> Checked<Ending> {
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
