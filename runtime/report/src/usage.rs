//! Machine time of many runs, as operators of clusters need it: states and causes, wall time, time in queues, device
//! hours, utilization; as a table, in groups, and as a page.

use crate::Page;
use crate::results::{Cell, Column, ColumnKind, ResultTable, RunRow};
use meshwright_diag::codes;
use meshwright_runs::{RunState, RunUsage};
use meshwright_sorted::{SortedMap, SortedSet};
use serde_json::{Value, json};

/// The script of the page.
const SCRIPT: &str = include_str!("assets/usage.js");
const STYLE: &str = include_str!("assets/usage.css");
const HOUR: f64 = 3600.0;

/// A run and what it took.
#[derive(Clone, Debug)]
pub struct UsedRun {
    /// The run.
    pub row: RunRow,
    /// Its use.
    pub usage: RunUsage,
}

/// Some runs together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageGroup {
    /// The common value.
    pub name: String,
    /// Number of runs.
    pub runs: usize,
    /// Number of failed runs.
    pub failed: usize,
    /// The numbers of devices that they have.
    pub devices: SortedSet<u64>,
    /// Wall time of all of them; each may have gone on beside others.
    pub wall_seconds: f64,
    /// Seconds that their jobs waited in queues; none where nobody noted any. A job of several runs waited once.
    pub queue_seconds: Option<f64>,
    /// Wall time times devices, in hours.
    pub device_hours: f64,
    /// Model FLOPs utilization, each run as its device hours weigh; none where it was not measured.
    pub mfu: Option<f64>,
    /// The share of steps that devices waited in collectives, in the same way.
    pub waiting: Option<f64>,
}

impl UsedRun {
    fn model(&self) -> &str {
        self.row.summary.as_ref().map_or("unknown", |s| &s.model)
    }

    /// Its devices; by its mesh where its Plan is not kept.
    pub fn devices(&self) -> Option<u64> {
        let s = self.row.summary.as_ref()?;
        let sizes =
            s.mesh.split([',', 'x']).filter_map(|axis| axis.rsplit('=').next()?.trim().parse::<u64>().ok());
        Some(s.costs.as_ref().map_or_else(|| sizes.product(), |c| c.devices as u64))
    }

    /// Wall time of all its processes times its devices.
    pub fn device_hours(&self) -> Option<f64> {
        Some(self.usage.wall_seconds()? * self.devices()? as f64 / HOUR)
    }

    /// By what it failed: the code of its error, with the title of that, or the signal that ended it.
    pub fn cause(&self) -> Option<String> {
        // Others tell in the same place why they were stopped.
        let error = self.row.error.as_deref().filter(|_| self.row.state == RunState::Failed.name())?;
        let id = error.split(':').next().unwrap_or_default();
        if id.starts_with("killed by signal ") {
            return id.split(',').next().map(String::from);
        }
        let known = codes::ALL.iter().find(|c| c.id == id);
        Some(known.map_or("another error".into(), |c| {
            let title = c.page.lines().next().unwrap_or_default().trim_start_matches('#').trim();
            format!("{id} {title}")
        }))
    }

    /// Seconds that its jobs waited in queues.
    pub fn queue_seconds(&self) -> Option<f64> {
        queued(std::slice::from_ref(&self))
    }
}

/// Seconds that the jobs of some runs waited, each counted once.
fn queued(runs: &[&UsedRun]) -> Option<f64> {
    let mut jobs: SortedMap<(&str, &str), f64> = SortedMap::new();
    for p in runs.iter().flat_map(|r| &r.usage.processes) {
        if let Some((job, seconds)) = p.job.as_ref().zip(p.queue_seconds) {
            let longest = jobs.entry((&job.launcher, &job.id)).or_insert(0.0);
            *longest = longest.max(seconds);
        }
    }
    (!jobs.is_empty()).then(|| jobs.values().sum())
}

/// The mean of what some runs have, as their device hours weigh.
fn weighed(runs: &[&UsedRun], get: fn(&RunUsage) -> Option<f64>) -> Option<f64> {
    let all = runs.iter().filter_map(|r| Some((get(&r.usage)?, r.device_hours()?)));
    let (sum, hours) = all.fold((0.0, 0.0), |(sum, hours), (v, h)| (sum + v * h, hours + h));
    (hours > 0.0).then(|| sum / hours)
}

fn group(name: String, runs: &[&UsedRun]) -> UsageGroup {
    UsageGroup {
        name,
        runs: runs.len(),
        failed: runs.iter().filter(|r| r.row.state == RunState::Failed.name()).count(),
        devices: runs.iter().filter_map(|r| r.devices()).collect(),
        wall_seconds: runs.iter().filter_map(|r| r.usage.wall_seconds()).sum(),
        queue_seconds: queued(runs),
        device_hours: runs.iter().filter_map(|r| r.device_hours()).sum(),
        mfu: weighed(runs, |u| u.mfu),
        waiting: weighed(runs, |u| u.waiting),
    }
}

fn grouped(all: &[UsedRun], key: impl Fn(&UsedRun) -> String) -> Vec<UsageGroup> {
    let mut groups: SortedMap<String, Vec<&UsedRun>> = SortedMap::new();
    for run in all {
        groups.entry(key(run)).or_default().push(run);
    }
    let mut groups: Vec<UsageGroup> = groups.into_iter().map(|(name, runs)| group(name, &runs)).collect();
    groups.sort_by_key(|g| std::cmp::Reverse(g.runs));
    groups
}

/// All runs together.
pub fn in_all(all: &[UsedRun]) -> UsageGroup {
    group("all".into(), &all.iter().collect::<Vec<_>>())
}

/// By model, that with the most runs first.
pub fn by_model(all: &[UsedRun]) -> Vec<UsageGroup> {
    grouped(all, |r| r.model().into())
}

/// By state, and failed ones by cause.
pub fn by_end(all: &[UsedRun]) -> Vec<UsageGroup> {
    grouped(all, |r| {
        r.cause().map_or_else(|| r.row.state.into(), |cause| format!("{}: {cause}", r.row.state))
    })
}

/// A row for each run.
pub fn table(all: &[UsedRun]) -> ResultTable {
    use ColumnKind::{Count, Number, Text, Time};
    let text = |v: Option<String>| v.map_or(Cell::Missing, Cell::Text);
    let number = |v: Option<f64>| v.map_or(Cell::Missing, Cell::Number);
    let columns = [
        ("run", Text),
        ("model", Text),
        ("layout", Text),
        ("state", Text),
        ("cause", Text),
        ("devices", Count),
        ("started", Time),
        ("starts", Count),
        ("wall_seconds", Number),
        ("queue_seconds", Number),
        ("device_hours", Number),
        ("steps", Count),
        ("mfu", Number),
        ("waiting", Number),
        ("jobs", Text),
        ("error", Text),
    ];
    let row = |r: &UsedRun| {
        let mut jobs: Vec<&str> =
            r.usage.processes.iter().filter_map(|p| Some(p.job.as_ref()?.id.as_str())).collect();
        jobs.dedup();
        vec![
            Cell::Text(r.row.name.clone()),
            Cell::Text(r.model().into()),
            text(r.row.layout.clone()),
            Cell::Text(r.row.state.into()),
            text(r.cause()),
            r.devices().map_or(Cell::Missing, Cell::Count),
            text(r.usage.processes.first().map(|p| p.started.clone())),
            Cell::Count(r.usage.processes.len() as u64),
            number(r.usage.wall_seconds()),
            number(r.queue_seconds()),
            number(r.device_hours()),
            r.row.summary.as_ref().map_or(Cell::Missing, |s| Cell::Count(s.steps)),
            number(r.usage.mfu),
            number(r.usage.waiting),
            text(Some(jobs.join(" ")).filter(|j| !j.is_empty())),
            text(r.row.error.clone()),
        ]
    };
    ResultTable {
        columns: columns.map(|(name, kind)| Column::new(name, kind)).into(),
        rows: all.iter().map(row).collect(),
    }
}

/// A page with charts and the table.
pub fn page(all: &[UsedRun], title: &str) -> String {
    let group = |g: &UsageGroup| {
        json!({ "name": g.name, "runs": g.runs, "failed": g.failed, "devices": g.devices, "wall": g.wall_seconds,
            "queue": g.queue_seconds, "hours": g.device_hours, "mfu": g.mfu, "waiting": g.waiting })
    };
    let groups = |all: Vec<UsageGroup>| -> Value { all.iter().map(group).collect() };
    let run = |r: &UsedRun| {
        json!({ "name": r.row.name, "model": r.model(), "layout": r.row.layout, "state": r.row.state, "cause": r.cause(),
            "devices": r.devices(), "wall": r.usage.wall_seconds(), "queue": r.queue_seconds(), "hours": r.device_hours(),
            "mfu": r.usage.mfu, "waiting": r.usage.waiting, "error": r.row.error,
            "started": r.usage.processes.first().map(|p| &p.started) })
    };
    let data = json!({
        "all": group(&in_all(all)),
        "ends": groups(by_end(all)),
        "models": groups(by_model(all)),
        "runs": all.iter().map(run).collect::<Vec<_>>(),
    });
    Page { title, data, script: SCRIPT, style: STYLE }.html()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_runs::ProcessUsage;
    use meshwright_runs::cluster_job::ClusterJob;

    fn run(
        name: &str,
        state: &'static str,
        error: Option<&str>,
        job: Option<(&str, f64)>,
        wall: f64,
    ) -> UsedRun {
        let process = ProcessUsage {
            started: "2026-01-31T12:00:00Z".into(),
            wall_seconds: wall,
            job: job.map(|j| ClusterJob {
                launcher: "slurm".into(),
                id: j.0.into(),
                submitted: None,
                started: None,
            }),
            queue_seconds: job.map(|j| j.1),
        };
        UsedRun {
            row: RunRow {
                name: name.into(),
                state,
                error: error.map(String::from),
                layout: None,
                mesh: None,
                dims: vec![],
                sets: vec![],
                seed: None,
                summary: None,
                chosen: None,
            },
            usage: RunUsage { processes: vec![process], mfu: Some(0.5), waiting: None },
        }
    }

    #[test]
    fn a_job_of_several_runs_waits_once_and_errors_are_grouped() {
        let all = [
            run("a", "finished", None, Some(("7", 30.0)), 10.0),
            run("b", "failed", Some("E0517: the loss is NaN"), Some(("7", 30.0)), 20.0),
            run("c", "failed", Some("E0517: the loss is infinite"), Some(("8", 5.0)), 30.0),
            run("d", "failed", Some("killed"), None, 0.0),
        ];
        let one = in_all(&all);
        assert_eq!((one.runs, one.failed, one.wall_seconds, one.queue_seconds), (4, 3, 60.0, Some(35.0)));
        let ends: Vec<(String, usize)> = by_end(&all).into_iter().map(|g| (g.name, g.runs)).collect();
        assert_eq!(ends[0].1, 2);
        assert!(ends[0].0.starts_with("failed: E0517 "), "{ends:?}");
        assert!(
            ends.contains(&("finished".into(), 1)) && ends.contains(&("failed: another error".into(), 1))
        );
        let table = table(&all);
        let queue = table.column("queue_seconds").unwrap();
        assert_eq!(
            (table.rows[0][queue].clone(), table.rows[3][queue].clone()),
            (Cell::Number(30.0), Cell::Missing)
        );
        assert!(page(&all, "Runs").contains("\"queue\":35.0"));
    }
}
