//! The rows of a sweep: what is known of each of its runs, read from their folders.

use super::combination::Combination;
use super::spec::wrong;
use meshwright_report::results::RunRow;
use meshwright_train::Checked;
use meshwright_train::run_dir::holds_run;
use meshwright_train::runs::{RunState, RunSummary, read_all};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The file of what no folder of a run tells.
const PROBLEMS: &str = "problems.json";

/// Why a run is not there, or has not gone on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "error")]
pub(crate) enum Problem {
    /// It does not compile.
    Skipped(String),
    /// Its process failed.
    Failed(String),
    /// Halving has left it behind.
    Stopped(String),
}

/// The problems of a sweep, by the names of runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Problems(BTreeMap<String, Problem>);

impl Problems {
    /// Those that the folder of a sweep has.
    pub(crate) fn read(dir: &Path) -> Checked<Problems> {
        let path = dir.join(PROBLEMS);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| unusable(&path, &e)),
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
        if self.0.get(name) == problem.as_ref() {
            return Ok(());
        }
        match problem {
            Some(p) => drop(self.0.insert(name.into(), p)),
            None => drop(self.0.remove(name)),
        }
        let path = dir.join(PROBLEMS);
        let text = serde_json::to_string_pretty(self).map_err(|e| unusable(&path, &e))?;
        write(&path, text.as_bytes())
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Box<meshwright_diag::Diagnostic> {
    Box::new(wrong(format!("`{}` cannot be used: {why}", path.display())))
}

/// A file without a name yet, for those to read who may read what this process writes.
pub(crate) fn new_file(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let all = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().permissions(all).tempfile_in(folder)
}

/// Writes a file of a sweep: under its name there is always the old or the new one.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Checked<()> {
    let written = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut temp = new_file(folder)?;
        temp.write_all(bytes)?;
        temp.as_file().sync_data()?;
        temp.persist(path).map_err(|e| e.error)?;
        std::io::Result::Ok(())
    };
    written().map_err(|e| Box::new(wrong(format!("`{}` cannot be written: {e}", path.display()))))
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
    pub(crate) fn of(c: &Combination, problems: &Problems, summary: Option<RunSummary>) -> SweepRow {
        let name = c.name();
        SweepRow { combination: c.clone(), problem: problems.of(&name).cloned(), summary, name }
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
        }
    }

    /// How it stands, in a word.
    pub(crate) fn state(&self) -> &'static str {
        let state = self.summary.as_ref().map(|s| s.state);
        match (state, &self.problem) {
            (
                Some(RunState::Finished | RunState::Running),
                None | Some(Problem::Failed(_) | Problem::Skipped(_)),
            ) => state.map_or("", RunState::name),
            (_, Some(Problem::Failed(_))) => RunState::Failed.name(),
            (_, Some(Problem::Skipped(_))) => "skipped",
            (Some(_), Some(Problem::Stopped(_))) => "stopped",
            (Some(s), None) => s.name(),
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

/// The folders of those runs of a sweep that are there.
pub(crate) fn folders(dir: &Path, all: &[Combination]) -> Vec<PathBuf> {
    all.iter().map(|c| dir.join(c.name())).filter(|p| holds_run(p)).collect()
}

/// Reads the runs of a sweep.
pub(crate) fn rows(dir: &Path, all: &[Combination], problems: &Problems) -> Checked<Vec<SweepRow>> {
    let there = folders(dir, all);
    let mut read = BTreeMap::new();
    for (path, summary) in there.iter().zip(read_all(&there)) {
        read.insert(path.clone(), summary?);
    }
    Ok(all.iter().map(|c| SweepRow::of(c, problems, read.remove(&dir.join(c.name())))).collect())
}
