//! The runs that folders hold, however deep, and what is read of them. Of a sweep, these are also the runs that failed, were left
//! out, or are not there yet.

use crate::sweep::combination::Combination;
use crate::sweep::grid::combinations;
use crate::sweep::results::{Problem, Problems, SweepRow};
use crate::sweep::spec::{FILE, LOCK, SweepSpec};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::folder::holds_run;
use meshwright_report::report::{ReportedRun, ThinCurve, points_each};
use meshwright_report::results::RunRow;
use meshwright_runs::{FoundFolders, RunSummary, at_work_in, folders_below, read_all_with};
use meshwright_sorted::{SortedMap, SortedSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A place with something to read.
#[derive(Clone, Debug)]
pub(crate) enum RunPlace {
    /// The folder of a run.
    Run(PathBuf),
    /// The folder of a sweep, its runs, and the outcomes of combinations without a folder.
    Sweep { dir: PathBuf, all: Vec<Combination>, problems: Problems },
    /// A failure to read: a warning if only something may be missing.
    Unread(Box<Diagnostic>),
}

/// Runs and sweeps of some folders.
///
/// # Errors
///
/// E0511 for a folder that holds neither runs nor sweeps, or cannot be read.
pub(crate) fn places(paths: &[PathBuf]) -> Checked<Vec<RunPlace>> {
    let nothing = |path: &Path, why: &str| {
        let message = format!("`{}` has nothing to report: {why}", path.display());
        let d = Diagnostic::error(codes::E0511, message);
        Box::new(d.help("name the folder of a run, of a sweep, or one that holds some, such as `runs`"))
    };
    if let Some(missing) = paths.iter().find(|p| !p.is_dir()) {
        return Err(nothing(missing, "there is no such folder"));
    }
    places_in(paths, &mut |empty| Err(nothing(empty, "it holds no run")))
}

/// Runs and sweeps of some folders, each once. `empty` gets each folder that holds none.
///
/// # Errors
///
/// E0511 for a folder that cannot be read, and those of `empty`.
pub(crate) fn places_in(
    paths: &[PathBuf],
    empty: &mut dyn FnMut(&Path) -> Checked<()>,
) -> Checked<Vec<RunPlace>> {
    let real = |p: &Path| p.canonicalize().unwrap_or_else(|_| p.into());
    let mut seen = SortedSet::new();
    let mut all = Vec::new();
    for path in paths {
        let FoundFolders { found, unread } = folders_below(path, |f| holds_run(f) || holds_sweep(f))?;
        all.extend(unread.iter().map(|at| {
            let message = format!("`{}` cannot be read: runs in it and below are left out", at.display());
            RunPlace::Unread(Box::new(Diagnostic::warning(codes::E0511, message)))
        }));
        if found.is_empty() {
            empty(path)?;
        }
        all.extend(found.into_iter().filter(|f| seen.insert(real(f))).map(place));
    }
    // A sweep lists its own runs.
    let mut of_sweeps = SortedSet::new();
    for place in &all {
        if let RunPlace::Sweep { dir, all, .. } = place {
            let dir = real(dir);
            of_sweeps.extend(all.iter().map(|c| dir.join(c.name())));
        }
    }
    all.retain(|p| !matches!(p, RunPlace::Run(path) if of_sweeps.contains(&real(path))));
    Ok(all)
}

/// True for the folder of a sweep. Somebody's own file of that name has no lock beside it.
fn holds_sweep(folder: &Path) -> bool {
    [FILE, LOCK].iter().all(|name| folder.join(name).is_file())
}

fn place(folder: PathBuf) -> RunPlace {
    if holds_run(&folder) {
        return RunPlace::Run(folder);
    }
    let spec = SweepSpec::read(&folder.join(FILE));
    spec.and_then(|spec| RunPlace::sweep(&folder, &spec)).unwrap_or_else(RunPlace::Unread)
}

impl RunPlace {
    /// The folder of a sweep.
    ///
    /// # Errors
    ///
    /// If it has no combinations, or their outcomes cannot be read.
    pub(crate) fn sweep(dir: &Path, spec: &SweepSpec) -> Checked<RunPlace> {
        Ok(RunPlace::Sweep { all: combinations(spec)?, problems: Problems::read(dir)?, dir: dir.into() })
    }
}

/// A run of some places.
pub(crate) struct PlacedRun {
    /// The folder that it has, or would have.
    pub(crate) path: PathBuf,
    /// True if it is there.
    pub(crate) there: bool,
    /// The line of the sweep about it.
    of_sweep: Option<(Combination, Option<Problem>)>,
}

impl PlacedRun {
    /// As a row of a table, with what its folder says. Runs are called by their paths below `root`.
    pub(crate) fn row(&self, summary: Option<RunSummary>, root: &Path) -> Option<RunRow> {
        let Some((c, problem)) = &self.of_sweep else { return summary.map(|s| RunRow::of(s, root)) };
        let row = SweepRow::of(c, problem.clone(), summary).run();
        let name = self.path.strip_prefix(root).unwrap_or(&self.path).display().to_string();
        Some(RunRow { name, ..row })
    }
}

/// The runs of some places, in their order.
pub(crate) fn runs_of(places: &[RunPlace]) -> Vec<PlacedRun> {
    let mut runs = Vec::new();
    for place in places {
        match place {
            RunPlace::Run(path) => runs.push(PlacedRun { path: path.clone(), there: true, of_sweep: None }),
            RunPlace::Sweep { dir, all, problems } => runs.extend(all.iter().map(|c| {
                let name = c.name();
                let path = dir.join(&name);
                let of_sweep = Some((c.clone(), problems.of(&name).cloned()));
                PlacedRun { there: holds_run(&path), path, of_sweep }
            })),
            RunPlace::Unread(_) => {}
        }
    }
    runs
}

/// The folder that names of runs are relative to, if one is named.
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

impl FoundRuns {
    /// Why runs are left out, in a line each.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.unreadable.iter().map(|d| format!("{}: {}", d.code.id, d.message)).collect()
    }
}

/// Runs that were read before: an unchanged run is not read again.
#[derive(Default)]
pub(crate) struct ReadRuns(SortedMap<PathBuf, (Stamp, Checked<(RunSummary, ThinCurve)>)>);

/// By which a change is seen: length and time of the files that a summary is made of, and whether a process is at work.
#[derive(Clone, Debug, PartialEq)]
struct Stamp(Vec<Option<(u64, SystemTime)>>, bool);

impl Stamp {
    fn of(run: &Path, at_work: bool) -> Stamp {
        let of = |name: &str| {
            let about = run.join(name).symlink_metadata().ok()?;
            Some((about.len(), about.modified().ok()?))
        };
        Stamp(["run.toml", "metrics.jsonl", "history.jsonl", "costs.json"].map(of).into(), at_work)
    }
}

impl ReadRuns {
    /// Reads the new and the changed ones.
    fn refresh(&mut self, runs: &[PathBuf], points: usize) {
        let at_work = at_work_in(runs);
        let stamps: Vec<Stamp> = runs.iter().zip(at_work).map(|(r, at_work)| Stamp::of(r, at_work)).collect();
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

/// Reads what is in some places. Runs are called by their paths below `root`; what cannot be read is among the `unreadable`.
pub(crate) fn read(places: &[RunPlace], root: &Path, before: &mut ReadRuns) -> FoundRuns {
    let runs = runs_of(places);
    let paths: Vec<PathBuf> = runs.iter().filter(|r| r.there).map(|r| r.path.clone()).collect();
    before.refresh(&paths, points_each(runs.len()));
    let mut found = FoundRuns { runs: Vec::new(), unreadable: Vec::new() };
    for run in &runs {
        let read = if run.there { before.of(&run.path) } else { None };
        found.add(read, |summary| run.row(summary, root));
    }
    found.unreadable.extend(places.iter().filter_map(|p| match p {
        RunPlace::Unread(why) => Some((**why).clone()),
        _ => None,
    }));
    found
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
