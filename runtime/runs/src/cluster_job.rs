//! The job of a cluster that a process is part of, as its environment tells.

use crate::clock::time_of;
use serde::{Deserialize, Serialize};

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

/// The variable by which the job files that Meshwright writes tell when the job was submitted, in seconds since 1970: Slurm has
/// none.
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

#[cfg(test)]
mod tests {
    use super::*;

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
