//! The runs that a command line names.

use crate::commands::new_run::RUNS;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_files::folder::holds_run;
use meshwright_runs::{run_near, runs_below};
use std::path::{Path, PathBuf};

/// How many folders are looked into for a hint.
const LOOKED_INTO: usize = 200;

/// The folder of a run that is named by its path, or by its name in `runs`.
pub(super) fn chosen(run: &Path) -> Checked<PathBuf> {
    let below = Path::new(RUNS).join(run);
    // Without a slash at its end.
    let plain = |p: &Path| p.components().collect::<PathBuf>();
    match () {
        () if holds_run(run) => Ok(plain(run)),
        () if holds_run(&below) => Ok(plain(&below)),
        () => Err(Box::new(not_a_run(run))),
    }
}

/// All that are named; a run that is named twice counts once.
pub(super) fn all_chosen(runs: &[PathBuf]) -> Checked<Vec<PathBuf>> {
    let mut all: Vec<PathBuf> = Vec::new();
    for run in runs {
        let folder = chosen(run)?;
        let same = |other: &PathBuf| match (other.canonicalize(), folder.canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => *other == folder,
        };
        if !all.iter().any(same) {
            all.push(folder);
        }
    }
    Ok(all)
}

fn not_a_run(run: &Path) -> Diagnostic {
    let at = run.display();
    let why = if run.is_dir() { "there is no `run.toml` in it" } else { "there is no such folder" };
    let d = Diagnostic::error(codes::E0510, format!("`{at}` is not the folder of a run: {why}"));
    if let Some(first) = run_near(run, LOOKED_INTO) {
        return d.help(format!("there are runs below, such as `{}`", first.display()));
    }
    let root = Path::new(RUNS);
    let there = runs_below(root).unwrap_or_default().found;
    let names: Vec<String> = there.iter().map(|r| r.display().to_string()).collect();
    let short = names.iter().map(|n| n.strip_prefix("runs/").unwrap_or(n));
    let typed = at.to_string();
    match nearest(typed.trim_end_matches('/'), short.chain(names.iter().map(String::as_str))) {
        Some(near) => d.help(format!("did you mean `{near}`?")),
        None => d.help("`meshwright runs ls DIR` lists the runs in a folder and below"),
    }
}
