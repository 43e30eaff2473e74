//! `runs rm`: runs that are no longer wanted, or their old checkpoints.

use super::run_choice::all_chosen;
use crate::args::RunsRmArgs;
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::{bytes, counted};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_runs::at_work;
use meshwright_runs::removal::{RunContents, old_checkpoints, remove_old_checkpoints, remove_run};
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

/// Runs the command.
pub(super) fn rm(args: &RunsRmArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let runs = all_chosen(&args.runs)?;
    // All or none: nothing is removed before all are known to be removable.
    let mut all = Vec::new();
    for run in &runs {
        all.push(planned(run, args.checkpoints)?);
    }
    let files: usize = all.iter().map(|c| c.files.len()).sum();
    if files == 0 {
        console.note("there is nothing to remove");
    } else if !args.dry_run && !args.yes {
        ask(&runs, &all, args.checkpoints, console)?;
    }
    let mut freed = 0;
    for (run, planned) in runs.iter().zip(all) {
        let gone = match (args.dry_run, args.checkpoints) {
            (true, _) => planned,
            (false, true) => remove_old_checkpoints(run)?,
            (false, false) => remove_run(run)?,
        };
        freed += gone.bytes();
        said(run, &gone, args, console)?;
    }
    if !console.json() && runs.len() > 1 {
        let would = if args.dry_run { "would free" } else { "freed" };
        console.out(&format!("{}: {would} {}\n", counted(runs.len() as u64, "run"), bytes(freed)))?;
    }
    Ok(())
}

/// What would be removed of a run that nobody works in.
fn planned(run: &Path, checkpoints: bool) -> Checked<RunContents> {
    if at_work(run) {
        let message = format!("`{}` is not removed: a process is at work in it", run.display());
        let d = Diagnostic::error(codes::E0510, message);
        return Err(Box::new(d.help("wait for its end, or stop it with Ctrl-C")));
    }
    if checkpoints { old_checkpoints(run) } else { RunContents::read(run) }
}

fn ask(
    runs: &[PathBuf],
    all: &[RunContents],
    checkpoints: bool,
    console: &mut Console,
) -> Result<(), CommandEnd> {
    if !std::io::stdin().is_terminal() || console.json() {
        return Err(Stop::Usage(
            "nobody can be asked here: add `--yes` to remove, or `--dry-run` to see what would be removed"
                .into(),
        )
        .into());
    }
    let size = bytes(all.iter().map(RunContents::bytes).sum());
    let names: Vec<String> = runs.iter().map(|r| format!("`{}`", r.display())).collect();
    let what = if checkpoints { "old checkpoints of " } else { "" };
    console.err(&format!("remove {what}{}, {size}? [y/N] ", names.join(", ")));
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(Stop::Output)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    console.note("nothing is removed");
    Err(Stop::Diagnosed.into())
}

fn said(run: &Path, gone: &RunContents, args: &RunsRmArgs, console: &mut Console) -> Result<(), Stop> {
    let name = run.display().to_string();
    if console.json() {
        let files: Vec<String> = gone.files.iter().map(|f| f.path.display().to_string()).collect();
        let others: Vec<String> = gone.others.iter().map(|o| o.display().to_string()).collect();
        return console.out_json(&object([
            ("run", name.into()),
            ("removed", (!args.dry_run).into()),
            ("bytes", gone.bytes().into()),
            ("files", files.into()),
            ("left", others.into()),
        ]));
    }
    let would = if args.dry_run { "would free" } else { "freed" };
    let many = counted(gone.files.len() as u64, "file");
    console.out(&format!("{name}: {would} {} in {many}\n", bytes(gone.bytes())))?;
    if let Some(first) = gone.others.first() {
        let more = gone.others.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        console.note(&format!(
            "`{name}` stays: it holds `{}`{more}, which the run did not write",
            first.display()
        ));
    }
    Ok(())
}
