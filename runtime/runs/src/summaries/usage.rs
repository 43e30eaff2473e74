//! What a run took of a machine: wall time, time in the queue, and how far its devices were used.

use super::events::RunEvent;
use crate::clock::seconds_of;
use crate::cluster_job::ClusterJob;
use crate::run_dir::read_log;
use meshwright_files::Checked;
use rayon::prelude::*;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A process of a run, or all processes of one start of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUsage {
    /// When it began, in RFC 3339.
    pub started: String,
    /// Seconds until its last sign in the log or the history. What it did after its last checkpoint is not there where another
    /// has gone on from that.
    pub wall_seconds: f64,
    /// The job of a cluster that it was part of.
    pub job: Option<ClusterJob>,
    /// Seconds that the job had waited before it began; none where nobody noted it.
    pub queue_seconds: Option<f64>,
}

/// All of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunUsage {
    /// Its processes, in order.
    pub processes: Vec<ProcessUsage>,
    /// Model FLOPs utilization over all its steps; none where it was not measured.
    pub mfu: Option<f64>,
    /// The share of its steps that devices waited in collectives.
    pub waiting: Option<f64>,
}

#[derive(Deserialize)]
struct UsageLine<'a> {
    event: &'a str,
    seconds: Option<f64>,
    mfu: Option<f64>,
    waiting: Option<f64>,
    time: Option<&'a str>,
}

/// A mean of values that hold for so many seconds.
#[derive(Default)]
struct MeanOverTime {
    sum: f64,
    seconds: f64,
}

impl MeanOverTime {
    fn add(&mut self, value: Option<f64>, seconds: f64) {
        if let Some(v) = value.filter(|v| v.is_finite()) {
            (self.sum, self.seconds) = (self.sum + v * seconds, self.seconds + seconds);
        }
    }

    fn value(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.sum / self.seconds)
    }
}

impl RunUsage {
    /// Reads the history and the log of the run in a folder.
    ///
    /// # Errors
    ///
    /// E0511 where one cannot be read.
    pub fn read(run: &Path) -> Checked<RunUsage> {
        Ok(Self::of(&RunEvent::read_all(run)?, &read_log(run)?))
    }

    /// Reads those of several runs, several at once.
    pub fn read_all(runs: &[PathBuf]) -> Vec<Checked<RunUsage>> {
        runs.par_iter().map(|run| RunUsage::read(run)).collect()
    }

    fn of(history: &[RunEvent], log: &[u8]) -> RunUsage {
        let (mut mfu, mut waiting) = (MeanOverTime::default(), MeanOverTime::default());
        // Times of one form: in the order of texts.
        let mut signs: Vec<&str> =
            history.iter().filter(|e| e.is_failure()).filter_map(|e| e.time.as_deref()).collect();
        for line in log.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice::<UsageLine<'_>>(l).ok())
        {
            signs.extend(line.time);
            if let ("step", Some(seconds)) = (line.event, line.seconds) {
                mfu.add(line.mfu, seconds);
                waiting.add(line.waiting, seconds);
            }
        }
        signs.sort_unstable();
        let starts: Vec<(&str, &RunEvent)> = history
            .iter()
            .filter(|e| !e.is_failure())
            .filter_map(|e| Some((e.time.as_deref()?, e)))
            .collect();
        let next = starts.iter().skip(1).map(|s| Some(s.0)).chain([None]);
        let processes = starts.iter().zip(next).map(|((start, event), next)| {
            let before = signs.partition_point(|s| next.is_none_or(|next| *s < next));
            let last = signs[..before].last().filter(|s| *s > start).copied().unwrap_or(start);
            let between = |a: &str, b: &str| Some((seconds_of(b)? - seconds_of(a)?).max(0.0));
            let queue = |job: &ClusterJob| {
                between(job.submitted.as_deref()?, job.started.as_deref().unwrap_or(start))
            };
            ProcessUsage {
                started: (*start).into(),
                wall_seconds: between(start, last).unwrap_or(0.0),
                queue_seconds: event.job.as_ref().and_then(queue),
                job: event.job.clone(),
            }
        });
        // More than all is a share of what is not known: the peak was measured while the machine was busy.
        let mfu = mfu.value().filter(|mean| *mean <= 1.0);
        RunUsage { processes: processes.collect(), mfu, waiting: waiting.value() }
    }

    /// Wall time of all its processes; none where it says nothing of when they began.
    pub fn wall_seconds(&self) -> Option<f64> {
        (!self.processes.is_empty()).then(|| self.processes.iter().map(|p| p.wall_seconds).sum())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn processes_last_from_their_start_to_their_last_sign() {
        let event = |text: &str| serde_json::from_str::<RunEvent>(text).unwrap();
        let history = [
            event(
                r#"{"event":"start","time":"2026-01-31T12:00:00.000Z","step":0,"job":{"launcher":"slurm","id":"7_1","submitted":"2026-01-31T11:58:00Z","started":"2026-01-31T11:59:30Z"}}"#,
            ),
            event(r#"{"event":"failed","time":"2026-01-31T12:00:10.000Z","error":"E0517: why"}"#),
            event(r#"{"event":"resume","time":"2026-01-31T13:00:00.000Z","step":2}"#),
            event(r#"{"event":"resume","time":"2026-01-31T14:00:00.000Z","step":3}"#),
        ];
        let log = r#"{"event":"step","step":1,"seconds":1.0,"mfu":0.5,"waiting":0.25,"time":"2026-01-31T12:00:03.500Z"}
{"event":"step","step":2,"seconds":3.0,"mfu":0.1,"waiting":0.25,"time":"2026-01-31T12:00:07.500Z"}
{"event":"step","step":3,"seconds":4.0,"mfu":null,"waiting":0.5,"time":"2026-01-31T13:00:02.500Z"}
{"event":"st"#;
        let usage = RunUsage::of(&history, log.as_bytes());
        let walls: Vec<f64> = usage.processes.iter().map(|p| p.wall_seconds).collect();
        assert_eq!((walls, usage.wall_seconds()), (vec![10.0, 2.5, 0.0], Some(12.5)));
        let queues: Vec<Option<f64>> = usage.processes.iter().map(|p| p.queue_seconds).collect();
        assert_eq!(queues, [Some(90.0), None, None]);
        assert_eq!((usage.mfu, usage.waiting), (Some(0.2), Some(0.375)));
        let beyond = r#"{"event":"step","step":1,"seconds":1.0,"mfu":1.21}"#;
        assert_eq!(RunUsage::of(&[], beyond.as_bytes()).mfu, None);
        assert_eq!(RunUsage::of(&[], b""), RunUsage::default());
        assert_eq!(RunUsage::default().wall_seconds(), None);
    }
}
