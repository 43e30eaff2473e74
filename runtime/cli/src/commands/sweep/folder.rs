//! The folder of a sweep: `sweep.toml`, the lock of the process that works in it, a folder for each run, `logs/`, and the tables.

use crate::console::Console;
use crate::sweep::check::Runnable;
use crate::sweep::combination::Combination;
use crate::sweep::results::write;
use crate::sweep::spec::{FILE, LOCK, SweepSpec, wrong};
use meshwright_core::resolve::is_preset;
use meshwright_diag::{Diagnostic, codes};
use meshwright_train::Checked;
use meshwright_train::run_dir::holds_run;
use meshwright_train::runs::RunSummary;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What runs say of themselves.
const LOGS: &str = "logs";

/// The folder of a sweep that this process works in.
pub(super) struct SweepDir {
    path: PathBuf,
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
    /// Opens the folder, which is made where it is missing, and notes what the sweep is.
    pub(super) fn open(path: &Path, spec: &SweepSpec) -> Checked<SweepDir> {
        if holds_run(path) {
            let d = refused(path, &"it is the folder of a single run");
            return Err(Box::new(d.help("give another folder with `--run`")));
        }
        let before = path.join(FILE);
        if before.is_file() {
            let before = SweepSpec::read(&before)?;
            if before.model != spec.model {
                let d = refused(
                    path,
                    &format!("it holds a sweep of `{}`, not of `{}`", before.model, spec.model),
                );
                return Err(Box::new(d.help("give another folder with `--run`")));
            }
        }
        std::fs::create_dir_all(path.join(LOGS)).map_err(|e| refused(path, &e))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = lock.map_err(|e| refused(path, &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let d = refused(path, &"another sweep is at work in it");
                return Err(Box::new(
                    d.help("wait for its end: `meshwright sweep DIR --table` shows how far it is"),
                ));
            }
            Err(TryLockError::Error(e)) => return Err(refused(path, &e)),
        }
        write(&path.join(FILE), spec.text()?.as_bytes())?;
        Ok(SweepDir { path: path.into(), _lock: lock })
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of what a run says of itself.
    pub(super) fn log(&self, name: &str) -> Checked<PathBuf> {
        let logs = self.path.join(LOGS);
        std::fs::create_dir_all(&logs).map_err(|e| refused(&self.path, &e))?;
        Ok(logs.join(format!("{name}.log")))
    }
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

/// Refuses a folder whose run was made with other settings: under a name there is one run.
pub(super) fn same_run(s: &RunSummary, c: &Combination, asked: &Runnable, spec: &SweepSpec) -> Checked<()> {
    let dims: BTreeMap<String, usize> = c.dims.iter().cloned().collect();
    let sets: BTreeMap<String, f64> = c.sets.iter().cloned().collect();
    let rules = |r: &[String]| r.join("; ");
    let preset = |p: &Option<String>| p.clone().unwrap_or_else(|| "none".into());
    let same =
        s.preset.as_deref().zip(spec.preset.as_deref()).is_some_and(|(is, given)| is_preset(is, given));
    let preset_asked = if same { &s.preset } else { &spec.preset };
    let pairs = [
        ("preset", preset(&s.preset), preset(preset_asked)),
        ("precision", s.precision.clone(), spec.precision.clone().unwrap_or_else(|| s.precision.clone())),
        ("mesh", s.mesh.clone(), asked.mesh.clone()),
        ("layout", rules(&s.rules), rules(&asked.rules)),
        ("seed", s.seed.clone(), c.seed.to_string()),
        ("dims", format!("{:?}", s.dim), format!("{dims:?}")),
        ("consts", format!("{:?}", s.set), format!("{sets:?}")),
    ];
    let Some((what, was, is)) = pairs.into_iter().find(|(_, was, is)| was != is) else { return Ok(()) };
    let message = format!(
        "`{}` holds another run than the sweep asks for: {what} was {was}, and is {is}",
        s.path.display()
    );
    let d = Diagnostic::error(codes::E0510, message);
    Err(Box::new(d.help("give another folder with `--run`").help("or move the folder of that run away")))
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
