//! The history of a run: a line of `history.jsonl` each time that a process starts it or goes on with it.

use crate::clock::now;
use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_diag::Sources;
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
    transport: &'a str,
    processes: usize,
    /// The words of the command.
    arguments: &'a [String],
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
            transport: &options.devices.asked.transport,
            processes: options.devices.processes.count(),
            arguments: &options.arguments,
        }
    }
}
