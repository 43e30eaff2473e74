//! The folder of a sweep: `sweep.toml`, the lock of the process that works in it, a folder for each run, `logs/`, and the tables.

use super::run_identity::same_run;
use crate::output::console::Console;
use crate::refusal::wrong;
use crate::replace::write;
use crate::sweep::check::Verdict;
use crate::sweep::combination::Combination;
use crate::sweep::spec::{FILE, LOCK, SweepSpec};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use meshwright_files::folder::holds_run;
use meshwright_sorted::SortedSet;
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What runs say of themselves.
pub(super) const LOGS: &str = "logs";

/// The folder of a sweep that this process works in.
pub(super) struct SweepDir {
    folder: Folder,
    path: PathBuf,
    /// The sweep that it held.
    before: Option<SweepSpec>,
    /// The system releases it when the process ends, however it ends.
    _lock: File,
}

fn refused(path: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(
        codes::E0510,
        format!("`{}` cannot be used for a sweep: {why}", path.display()),
    ))
}

impl SweepDir {
    /// Takes the folder, which is made where it is missing. What it says of the sweep stays as it is.
    pub(super) fn lock(folder: Folder, spec: &SweepSpec) -> Checked<SweepDir> {
        let path = folder.path();
        let refused = |why: &dyn std::fmt::Display| refused(&path, why);
        if holds_run(&path) {
            let d = refused(&"it is the folder of a single run");
            return Err(Box::new(d.help("give another folder with `--run`")));
        }
        let note = path.join(FILE);
        let noted = || note.is_file().then(|| SweepSpec::read(&note)).transpose();
        // What a sweep has noted says where it was started.
        if noted()?.is_some_and(|before| before.folder.is_none()) {
            let d = refused(&format!(
                "a sweep notes what it is in `{FILE}`, and the one there is of somebody else"
            ));
            let help = format!("give another folder with `--run`, or `{FILE}` another name");
            return Err(Box::new(d.help(help)));
        }
        let folder = folder
            .create()
            .map_err(|e| refused(&e).help("`--run` names a folder wherever it is, and through links"))?;
        let at = |name: &'static str| move |e: io::Error| refused(&format!("`{name}`: {e}"));
        folder.below(LOGS).create().map_err(at(LOGS))?;
        let lock = folder.file(LOCK, OFlags::WRONLY | OFlags::CREATE).map_err(at(LOCK))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let d = refused(&"another sweep is at work in it");
                return Err(Box::new(
                    d.help("wait for its end: `meshwright sweep DIR --table` shows how far it is"),
                ));
            }
            Err(TryLockError::Error(e)) => return Err(refused(&e)),
        }
        let before = noted()?;
        if let Some(before) = before.as_ref().filter(|b| b.model != spec.model) {
            let d = refused(&format!("it holds a sweep of `{}`, not of `{}`", before.model, spec.model));
            return Err(Box::new(d.help("give another folder with `--run`")));
        }
        Ok(SweepDir { folder, path, before, _lock: lock })
    }

    /// Refuses a sweep whose runs would be others than those that are there under their names.
    pub(super) fn same_runs(
        &self,
        spec: &SweepSpec,
        all: &[Combination],
        verdicts: &[Verdict],
    ) -> Checked<()> {
        let there = self.folder.entries().map_err(|e| refused(&self.path, &e))?;
        let links: SortedSet<&OsStr> =
            there.iter().filter(|e| e.kind.is_symlink()).map(|e| e.name.as_os_str()).collect();
        for (c, verdict) in all.iter().zip(verdicts) {
            let name = c.name();
            if links.contains(OsStr::new(&name)) {
                let d = refused(
                    &self.path,
                    &format!("`{name}` in it is a symbolic link, not the folder of a run"),
                );
                return Err(Box::new(d.help("remove the link: the sweep makes the folder")));
            }
            let run = self.path.join(name);
            let Verdict::Runs(asked) = verdict else { continue };
            if holds_run(&run) {
                let before = self.before.as_ref();
                same_run(&run, before, (c, asked, spec))?;
            }
        }
        Ok(())
    }

    /// Notes what the sweep is: with this it goes on.
    pub(super) fn remember(&self, spec: &SweepSpec) -> Checked<()> {
        write(&self.path.join(FILE), spec.text()?.as_bytes())
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of what runs say of themselves.
    pub(super) fn logs(&self) -> Checked<Folder> {
        self.folder.below(LOGS).create().map_err(|e| refused(&self.path, &format!("`{LOGS}`: {e}")))
    }
}

/// The file of what a run says of itself.
pub(super) fn log_of(run: &str) -> String {
    format!("{run}.log")
}

fn no_folder(e: &io::Error) -> Box<Diagnostic> {
    Box::new(wrong(format!("the current folder cannot be used: {e}")))
}

/// The current folder.
pub(super) fn current() -> Checked<PathBuf> {
    std::env::current_dir().map_err(|e| no_folder(&e))
}

/// A folder that is the same wherever the command goes on.
pub(super) fn absolute(path: &Path) -> Checked<PathBuf> {
    std::path::absolute(path).map_err(|e| no_folder(&e))
}

/// Goes to the folder in which a sweep was started.
pub(super) fn enter(folder: &Path) -> Checked<()> {
    std::env::set_current_dir(folder).map_err(|e| {
        let d =
            wrong(format!("the sweep was started in `{}`, which cannot be entered: {e}", folder.display()));
        Box::new(d.help(format!("change `folder` in its `{FILE}`: relative paths are relative to it")))
    })
}

/// Cores of this machine for this process.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Says so where something else uses this machine, and times would tell of that.
pub(super) fn note_busy(console: &mut Console) {
    /// The share of the cores that may be busy.
    const QUIET: f64 = 0.1;
    let Some(before) = ticks() else { return };
    std::thread::sleep(Duration::from_millis(300));
    let Some(after) = ticks() else { return };
    let (all, idle) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    let busy = 1.0 - idle as f64 / all.max(1) as f64;
    if all > 0 && busy > QUIET {
        let percent = (busy * 100.0).round();
        console
            .note(&format!("{percent} % of this machine is busy with something else: times may be too long"));
    }
}

/// All time of the cores so far, and what of it they were idle.
fn ticks() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|w| w.parse().ok()).collect();
    Some((numbers.iter().take(8).sum(), numbers.get(3)? + numbers.get(4)?))
}
