//! The rows of a sweep: what is known of each of its runs, read from their folders.

use super::combination::Combination;
use crate::refusal::wrong;
use crate::replace::write;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use meshwright_files::folder::holds_run;
use meshwright_report::results::RunRow;
use meshwright_runs::{RunState, RunSummary, parsed, read_all};
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The file of what no folder of a run tells.
const PROBLEMS: &str = "problems.json";

/// Why a run is not there, or has not gone on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "error")]
pub(crate) enum Problem {
    /// It does not compile, or its data does not fit.
    Skipped(String),
    /// Its process failed.
    Failed(String),
    /// Halving has left it behind.
    Stopped(String),
    /// Halving has chosen it, which is no problem.
    Chosen(String),
}

/// The problems of a sweep, by the names of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Problems(SortedMap<String, Problem>);

impl Problems {
    /// Those that the folder of a sweep has.
    pub(crate) fn read(dir: &Path) -> Checked<Problems> {
        let path = dir.join(PROBLEMS);
        match Folder::at(dir).read(PROBLEMS) {
            Ok(text) => parsed::json(&text).map_err(|why| {
                let help = "remove the file: it only says why runs are not there, and the sweep finds that out again";
                Box::new(unusable(&path, &why).help(help))
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Problems::default()),
            Err(e) => Err(unusable(&path, &e)),
        }
    }

    /// Of a run.
    pub(crate) fn of(&self, name: &str) -> Option<&Problem> {
        self.0.get(name)
    }

    /// Notes what is wrong with a run, or that nothing is; the folder knows at once.
    pub(crate) fn note(&mut self, dir: &Path, name: &str, problem: Option<Problem>) -> Checked<()> {
        self.note_all(dir, [(name, problem)])
    }

    /// The same of several runs: the file is written once, and not where nothing is new.
    pub(crate) fn note_all<'a>(
        &mut self,
        dir: &Path,
        all: impl IntoIterator<Item = (&'a str, Option<Problem>)>,
    ) -> Checked<()> {
        let mut changed = false;
        for (name, problem) in all {
            changed |= self.0.get(name) != problem.as_ref();
            match problem {
                Some(p) => drop(self.0.insert(name.into(), p)),
                None => drop(self.0.remove(name)),
            }
        }
        if !changed {
            return Ok(());
        }
        let path = dir.join(PROBLEMS);
        let text = serde_json::to_string_pretty(self).map_err(|e| unusable(&path, &e))?;
        write(&path, text.as_bytes())
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Box<meshwright_diag::Diagnostic> {
    Box::new(wrong(format!("`{}` cannot be used: {why}", path.display())))
}

/// A run of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct SweepRow {
    pub(crate) name: String,
    pub(crate) combination: Combination,
    /// What its folder says; none where there is none yet.
    pub(crate) summary: Option<RunSummary>,
    pub(crate) problem: Option<Problem>,
}

impl SweepRow {
    /// The run of a combination.
    pub(crate) fn of(c: &Combination, problem: Option<Problem>, summary: Option<RunSummary>) -> SweepRow {
        SweepRow { name: c.name(), combination: c.clone(), summary, problem }
    }

    /// As a row of the table.
    pub(crate) fn run(&self) -> RunRow {
        let Combination { layout, mesh, dims, sets, seed } = self.combination.clone();
        RunRow {
            name: self.name.clone(),
            state: self.state(),
            error: self.error().map(String::from),
            layout,
            mesh,
            dims,
            sets,
            seed: Some(seed),
            summary: self.summary.clone(),
            chosen: match &self.problem {
                Some(Problem::Chosen(why)) => Some(why.clone()),
                _ => None,
            },
        }
    }

    /// How it stands, in a word.
    pub(crate) fn state(&self) -> &'static str {
        let state = self.summary.as_ref().map(|s| s.state);
        match (state, &self.problem) {
            (
                Some(RunState::Finished | RunState::Running),
                None | Some(Problem::Failed(_) | Problem::Skipped(_) | Problem::Chosen(_)),
            ) => state.map_or("", RunState::name),
            (_, Some(Problem::Failed(_))) => RunState::Failed.name(),
            (_, Some(Problem::Skipped(_))) => "skipped",
            (Some(_), Some(Problem::Stopped(_))) => "stopped",
            (Some(s), None | Some(Problem::Chosen(_))) => s.name(),
            (None, _) => "planned",
        }
    }

    /// What is wrong with it.
    pub(crate) fn error(&self) -> Option<&str> {
        match (self.state(), &self.problem) {
            ("failed", Some(Problem::Failed(why))) => Some(why),
            ("skipped", Some(Problem::Skipped(why))) | ("stopped", Some(Problem::Stopped(why))) => Some(why),
            ("failed", _) => self.summary.as_ref()?.error.as_deref(),
            _ => None,
        }
    }
}

/// Reads the runs of a sweep.
pub(crate) fn rows(dir: &Path, all: &[Combination], problems: &Problems) -> Checked<Vec<SweepRow>> {
    ReadOnce::default().rows(dir, all, problems)
}

/// What was read of runs that are finished: their logs may be long, and are read once as long as they do not go on.
#[derive(Default)]
pub(crate) struct ReadOnce(SortedMap<PathBuf, RunSummary>);

impl ReadOnce {
    /// Reads the runs of a sweep, as far as it has not.
    pub(crate) fn rows(
        &mut self,
        dir: &Path,
        all: &[Combination],
        problems: &Problems,
    ) -> Checked<Vec<SweepRow>> {
        let new = |p: &PathBuf| !self.0.contains_key(p) && holds_run(p);
        let there: Vec<PathBuf> = all.iter().map(|c| dir.join(c.name())).filter(new).collect();
        let mut read = SortedMap::new();
        for (path, summary) in there.iter().zip(read_all(&there)) {
            read.insert(path.clone(), summary?);
        }
        let finished = |s: &&RunSummary| s.state == RunState::Finished;
        self.0.extend(read.iter().filter(|r| finished(&r.1)).map(|(p, s)| (p.clone(), s.clone())));
        let row = |c: &Combination| {
            let name = c.name();
            let path = dir.join(&name);
            let summary = read.remove(&path).or_else(|| self.0.get(&path).cloned());
            SweepRow::of(c, problems.of(&name).cloned(), summary)
        };
        Ok(all.iter().map(row).collect())
    }

    /// A run goes on: what was read of it will not hold.
    pub(crate) fn goes_on(&mut self, run: &Path) {
        self.0.remove(run);
    }
}
