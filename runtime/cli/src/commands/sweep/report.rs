//! What a sweep says at its end: the table, in files and on standard output, and what went wrong.

use crate::args::{ResultArgs, ResultFormat};
use crate::commands::ends::CommandEnd;
use crate::console::Console;
use crate::results::{TableView, written};
use crate::stop::Stop;
use crate::sweep::results::{SweepRow, write};
use crate::sweep::spec::wrong;
use crate::table::Screen;
use crate::text::{counted, measure, seconds};
use meshwright_report::results::{ResultTable, RunRow};
use meshwright_train::Checked;
use meshwright_train::runs::RunSummary;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tables that the folder of a sweep has at its end.
const FILES: [(&str, ResultFormat); 5] = [
    ("table.txt", ResultFormat::Text),
    ("table.csv", ResultFormat::Csv),
    ("table.jsonl", ResultFormat::Jsonl),
    ("table.md", ResultFormat::Markdown),
    ("table.parquet", ResultFormat::Parquet),
];

/// How many failures are listed.
const LISTED: usize = 20;

/// Refuses Parquet without a file: a terminal cannot show it.
pub(super) fn fits(args: &ResultArgs, _: &Console) -> Result<(), Stop> {
    if args.format == ResultFormat::Parquet && args.output.is_none() {
        return Err(Stop::Usage("Parquet is written to a file: add `--output table.parquet`".into()));
    }
    Ok(())
}

fn of_runs(rows: &[SweepRow]) -> Vec<RunRow> {
    rows.iter().map(SweepRow::run).collect()
}

/// Whether a table of these runs has the column.
pub(super) fn sortable(rows: &[SweepRow], by: &str) -> Checked<()> {
    let mut table = ResultTable::of(&of_runs(rows));
    // Metrics are columns once a run has some.
    let later = ["train_", "test_", "validation_"].iter().any(|p| by.trim_start_matches('-').starts_with(p));
    if later { Ok(()) } else { table.sort(by) }
}

fn table(rows: &[SweepRow], sort: Option<&str>) -> Checked<ResultTable> {
    let mut table = ResultTable::of(&of_runs(rows));
    sort.map_or(Ok(()), |by| table.sort(by))?;
    Ok(table)
}

/// Prints the table, or writes it to the file that is asked for.
pub(super) fn print(rows: &[SweepRow], args: &ResultArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let table = table(rows, args.sort.as_deref())?;
    let screen = if args.output.is_some() { Screen::default() } else { *console.screen() };
    let bytes =
        written(&table, args.format, TableView::Sweep, &screen).map_err(|why| Stop::Internal(Some(why)))?;
    match &args.output {
        Some(path) => Ok(write(path, &bytes)?),
        None => Ok(console.out(&String::from_utf8_lossy(&bytes))?),
    }
}

/// Writes the table to the folder of the sweep, in every format.
pub(super) fn write_files(rows: &[SweepRow], dir: &Path, sort: Option<&str>) -> Result<(), CommandEnd> {
    let table = table(rows, sort)?;
    for (name, format) in FILES {
        let bytes = written(&table, format, TableView::Sweep, &Screen::default())
            .map_err(|why| Stop::Internal(Some(why)))?;
        write(&dir.join(name), &bytes)?;
    }
    Ok(())
}

/// A run that has ended, in a line.
pub(super) fn in_a_line(run: &Path) -> String {
    let Ok(s) = RunSummary::read(run) else { return "done".into() };
    let mut parts = Vec::new();
    parts.extend(s.last().map(|e| format!("train loss {}", measure(e.train_loss))));
    if let Some(e) = s.evaluations.last() {
        parts.push(format!("{} loss {}", e.set, measure(e.evaluation.loss)));
        parts.extend(e.evaluation.metrics.iter().take(2).map(|(name, v)| format!("{name} {}", measure(*v))));
    }
    if parts.is_empty() { "done".into() } else { parts.join("  ") }
}

/// The last words, and how the command ends.
pub(super) fn end(
    rows: &[SweepRow],
    (wall, own): (f64, f64),
    dir: &Path,
    stop: &AtomicBool,
    console: &mut Console,
) -> Result<(), Stop> {
    let with = |state: &'static str| rows.iter().filter(move |r| r.state() == state);
    let states = ["finished", "stopped", "interrupted", "planned", "failed", "skipped"];
    let counts = states.iter().map(|s| (with(s).count(), s)).filter(|c| c.0 > 0);
    let counts: Vec<String> = counts.map(|(n, state)| format!("{n} {state}")).collect();
    let times = format!("{}, of which the runs themselves took {}", seconds(wall), seconds(own));
    console.note(&format!("{}: {}; {times}", counted(rows.len() as u64, "run"), counts.join(", ")));
    let failed: Vec<&SweepRow> = with("failed").collect();
    for row in failed.iter().take(LISTED) {
        let log = dir.join("logs").join(format!("{}.log", row.name));
        console.warn(&format!(
            "`{}` failed: {} (see `{}`)",
            row.name,
            row.error().unwrap_or(""),
            log.display()
        ));
    }
    if failed.len() > LISTED {
        console.warn(&format!(
            "and {} more: `meshwright sweep {} --table`",
            failed.len() - LISTED,
            dir.display()
        ));
    }
    if stop.load(Ordering::Relaxed) {
        console.note(&format!("continue with the same command, or `meshwright sweep {}`", dir.display()));
        return Err(Stop::Interrupted);
    }
    let open = with("interrupted").count() + with("planned").count();
    if failed.is_empty() && open == 0 { Ok(()) } else { Err(Stop::Diagnosed) }
}

/// There is nothing to write a job for.
pub(super) fn nothing_to_launch() -> CommandEnd {
    CommandEnd::Wrong(Box::new(wrong("all runs of the sweep are done: there is nothing to launch".into())))
}
