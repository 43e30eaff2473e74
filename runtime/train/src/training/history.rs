//! What a run writes to its history: a line each time that a process starts it or goes on with it, and when it fails.

use crate::devices::device_failure::described;
use crate::failure::Failure;
use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_diag::{Sources, codes};
use meshwright_runs::clock::now;
use meshwright_runs::cluster_job::ClusterJob;
use meshwright_runs::history::FAILED;
use meshwright_sorted::SortedMap;
use serde::Serialize;
use sha2::Digest;

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
    consts: &'a SortedMap<String, f64>,
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
            layout: project.layout.lines().collect(),
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
