//! The history of a run: a line of `history.jsonl` each time that a process starts it or goes on with it, and when it fails.

use crate::Checked;
use crate::clock::{now, time_of};
use crate::failure::Failure;
use crate::project::Project;
use crate::run_dir::read_history;
use crate::training::TrainOptions;
use meshwright_diag::{Sources, codes};
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::path::Path;

const FAILED: &str = "failed";

/// A job of a cluster, as its scheduler tells the processes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterJob {
    /// `slurm`.
    pub launcher: String,
    /// Its number; of a task of an array with that of the task.
    pub id: String,
    /// When it was submitted, in RFC 3339, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted: Option<String>,
    /// When it began, in RFC 3339, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
}

/// The variable by which the job files that Meshwright writes tell when the job was submitted, in seconds since 1970: Slurm has none.
pub const SUBMITTED: &str = "MESHWRIGHT_JOB_SUBMITTED";

impl ClusterJob {
    /// The job that the environment tells of.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Option<ClusterJob> {
        let there = |name: &str| variable(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let array = || Some(format!("{}_{}", there("SLURM_ARRAY_JOB_ID")?, there("SLURM_ARRAY_TASK_ID")?));
        let id = array().or_else(|| there("SLURM_JOB_ID"))?;
        let time = |name: &str| there(name)?.parse().ok().and_then(time_of);
        // A job that was queued again has run since it was submitted.
        let again = there("SLURM_RESTART_COUNT").is_some_and(|n| n != "0");
        let submitted = if again { None } else { time(SUBMITTED) };
        Some(ClusterJob { launcher: "slurm".into(), id, submitted, started: time("SLURM_JOB_START_TIME") })
    }
}

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
            Failure::Exec(e) => format!("{}: {e}", codes::E0520.id),
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

    #[test]
    fn slurm_tells_of_its_jobs() {
        let of = |all: &[(&str, &str)]| {
            ClusterJob::of(|name| all.iter().find(|v| v.0 == name).map(|v| v.1.to_string()))
        };
        assert_eq!(of(&[("SLURM_JOB_ID", "")]), None);
        let times = [(SUBMITTED, "1769860680"), ("SLURM_JOB_START_TIME", "1769860770")];
        let job = |id: &str, submitted: Option<&str>| ClusterJob {
            launcher: "slurm".into(),
            id: id.into(),
            submitted: submitted.map(String::from),
            started: Some("2026-01-31T11:59:30Z".into()),
        };
        let one = of(&[&[("SLURM_JOB_ID", "7")], &times[..]].concat());
        assert_eq!(one, Some(job("7", Some("2026-01-31T11:58:00Z"))));
        let task = [("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "7"), ("SLURM_ARRAY_TASK_ID", "2")];
        let again = of(&[&task[..], &times[..], &[("SLURM_RESTART_COUNT", "1")]].concat());
        assert_eq!(again, Some(job("7_2", None)));
        let odd = of(&[("SLURM_JOB_ID", "7"), (SUBMITTED, "soon")]);
        assert!(odd.is_some_and(|j| j.submitted.is_none() && j.started.is_none()));
    }
}
