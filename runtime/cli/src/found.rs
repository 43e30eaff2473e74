//! The runs that folders hold, however deep, and what is read of them. Of a sweep, these are also the runs that failed, were left out,
//! or are not there yet.

use crate::sweep::combination::Combination;
use crate::sweep::grid::combinations;
use crate::sweep::results::{Problems, SweepRow, folders};
use crate::sweep::spec::{FILE, SweepSpec};
use meshwright_diag::{Diagnostic, codes};
use meshwright_report::report::{ReportedRun, ThinCurve, points_each};
use meshwright_report::results::RunRow;
use meshwright_train::Checked;
use meshwright_train::folder::entries;
use meshwright_train::run_dir::holds_run;
use meshwright_train::runs::{RunSummary, at_work, read_all_with};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// How deep runs may lie below a folder that is named.
const DEEP: usize = 8;

/// Where there is something to read.
#[derive(Clone, Debug)]
pub(crate) enum RunPlace {
    /// The folder of a run.
    Run(PathBuf),
    /// The folder of a sweep.
    Sweep { dir: PathBuf, spec: Box<SweepSpec> },
}

/// What is in some folders.
///
/// # Errors
///
/// E0511 for a folder that holds neither runs nor sweeps, or cannot be read.
pub(crate) fn places(paths: &[PathBuf]) -> Checked<Vec<RunPlace>> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        if path.is_dir() {
            walk(path, DEEP, &mut found)?;
        }
        if found.len() == before {
            let why = if path.is_dir() { "it holds no run" } else { "there is no such folder" };
            let d =
                Diagnostic::error(codes::E0511, format!("`{}` has nothing to report: {why}", path.display()));
            return Err(Box::new(
                d.help("name the folder of a run, of a sweep, or one that holds some, such as `runs`"),
            ));
        }
    }
    Ok(found)
}

fn walk(folder: &Path, deep: usize, found: &mut Vec<RunPlace>) -> Checked<()> {
    let spec = folder.join(FILE);
    if holds_run(folder) {
        found.push(RunPlace::Run(folder.into()));
        return Ok(());
    }
    // Somebody's own file of that name has no lock beside it.
    if spec.is_file() && folder.join(crate::sweep::spec::LOCK).is_file() {
        found.push(RunPlace::Sweep { dir: folder.into(), spec: Box::new(SweepSpec::read(&spec)?) });
        return Ok(());
    }
    if deep == 0 {
        return Ok(());
    }
    let unreadable =
        |e| Box::new(Diagnostic::error(codes::E0511, format!("`{}` cannot be read: {e}", folder.display())));
    for entry in entries(folder).map_err(unreadable)? {
        if entry.kind.is_dir() {
            walk(&entry.path, deep - 1, found)?;
        }
    }
    Ok(())
}

/// What names of runs are below: the folder, where one is named.
pub(crate) fn root(paths: &[PathBuf]) -> &Path {
    match paths {
        [one] => one,
        _ => Path::new(""),
    }
}

/// Runs as a report has them, and what could not be read.
pub(crate) struct FoundRuns {
    pub(crate) runs: Vec<ReportedRun>,
    pub(crate) unreadable: Vec<Diagnostic>,
}

/// What was read before: a run in which nothing has changed is not read again.
#[derive(Default)]
pub(crate) struct ReadRuns(BTreeMap<PathBuf, (Stamp, Checked<(RunSummary, ThinCurve)>)>);

/// By which a change is seen: length and time of the files that a summary is made of, and whether a process is at work.
#[derive(Clone, Debug, PartialEq)]
struct Stamp(Vec<Option<(u64, SystemTime)>>, bool);

impl Stamp {
    fn of(run: &Path) -> Stamp {
        let of = |name: &str| {
            let about = run.join(name).metadata().ok()?;
            Some((about.len(), about.modified().ok()?))
        };
        Stamp(["run.toml", "metrics.jsonl", "history.jsonl", "costs.json"].map(of).into(), at_work(run))
    }
}

impl ReadRuns {
    /// Reads those that are new or have changed.
    fn refresh(&mut self, runs: &[PathBuf], points: usize) {
        let stamps: Vec<Stamp> = runs.iter().map(|r| Stamp::of(r)).collect();
        let changed = |(run, stamp): &(&PathBuf, &Stamp)| self.0.get(*run).is_none_or(|old| old.0 != **stamp);
        let stale: Vec<(PathBuf, Stamp)> =
            runs.iter().zip(&stamps).filter(changed).map(|(r, s)| (r.clone(), s.clone())).collect();
        let paths: Vec<PathBuf> = stale.iter().map(|s| s.0.clone()).collect();
        let read = read_all_with(&paths, |curves| ThinCurve::of(curves, points));
        for ((run, stamp), found) in stale.into_iter().zip(read) {
            self.0.insert(run, (stamp, found));
        }
    }

    fn of(&self, run: &Path) -> Option<&Checked<(RunSummary, ThinCurve)>> {
        Some(&self.0.get(run)?.1)
    }
}

/// Reads what is in some places. Runs are called by their paths below `root`.
///
/// # Errors
///
/// Where a sweep does not say what its runs are. A run that cannot be read is among the `unreadable`.
pub(crate) fn read(places: &[RunPlace], root: &Path, before: &mut ReadRuns) -> Checked<FoundRuns> {
    let mut sweeps: Vec<Vec<Combination>> = Vec::new();
    let mut paths = Vec::new();
    let mut planned = 0;
    for place in places {
        match place {
            RunPlace::Run(path) => paths.push(path.clone()),
            RunPlace::Sweep { dir, spec } => {
                let all = combinations(spec)?;
                paths.extend(folders(dir, &all));
                planned += all.len();
                sweeps.push(all);
            }
        }
    }
    before.refresh(&paths, points_each(paths.len().max(planned)));
    let mut found = FoundRuns { runs: Vec::new(), unreadable: Vec::new() };
    let mut sweeps = sweeps.iter();
    for place in places {
        match place {
            RunPlace::Run(path) => found.add(before.of(path), |summary| summary.map(|s| RunRow::of(s, root))),
            RunPlace::Sweep { dir, .. } => {
                let problems = Problems::read(dir)?;
                let below = dir.strip_prefix(root).unwrap_or(dir);
                for c in sweeps.next().into_iter().flatten() {
                    found.add(before.of(&dir.join(c.name())), |summary| {
                        let row = SweepRow::of(c, &problems, summary).run();
                        Some(RunRow { name: below.join(&row.name).display().to_string(), ..row })
                    });
                }
            }
        }
    }
    Ok(found)
}

impl FoundRuns {
    fn add(
        &mut self,
        read: Option<&Checked<(RunSummary, ThinCurve)>>,
        row: impl FnOnce(Option<RunSummary>) -> Option<RunRow>,
    ) {
        let (summary, losses) = match read {
            Some(Err(why)) => return self.unreadable.push((**why).clone()),
            Some(Ok((summary, losses))) => (Some(summary.clone()), Some(losses.clone())),
            None => (None, None),
        };
        self.runs.extend(row(summary).map(|row| ReportedRun { row, losses }));
    }
}
