//! What a sweep says at its end: the table, in files and on standard output, and what went wrong.

use super::folder::{LOGS, absolute, log_of};
use crate::args::{ResultArgs, ResultFormat};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::table::Screen;
use crate::output::text::{counted, measure, seconds};
use crate::refusal::wrong;
use crate::replace::{writable, write};
use crate::results::{TableView, deliver, fits, written};
use crate::stop::Stop;
use crate::sweep::check::Verdict;
use crate::sweep::results::SweepRow;
use meshwright_files::Checked;
use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable, RunRow};
use meshwright_runs::RunSummary;
use std::path::{Path, PathBuf};
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

/// What a table is asked for as, from wherever the command goes on.
pub(super) struct AskedTable {
    /// The column that it is sorted by.
    pub(super) sort: Option<String>,
    format: ResultFormat,
    output: Option<PathBuf>,
    /// The page that is written too.
    pub(super) page: Option<PathBuf>,
}

impl AskedTable {
    /// Of the options. What could not be written is refused before anything is done for it.
    pub(super) fn of(args: &ResultArgs) -> Result<AskedTable, CommandEnd> {
        let place = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let (output, page) = (place(&args.output)?, place(&args.report)?);
        fits(args.format, output.as_deref())?;
        page.as_deref().map_or(Ok(()), writable)?;
        Ok(AskedTable { sort: args.sort.clone(), format: args.format, output, page })
    }

    /// Prints the table, or writes it to the file that is asked for.
    pub(super) fn deliver(&self, rows: &[SweepRow], console: &mut Console) -> Result<(), CommandEnd> {
        self.deliver_table(table(rows, None)?, console)
    }

    /// The same of a table that is made.
    pub(super) fn deliver_table(
        &self,
        mut table: ResultTable,
        console: &mut Console,
    ) -> Result<(), CommandEnd> {
        self.sort.as_deref().map_or(Ok(()), |by| table.sort(by))?;
        deliver(&table, TableView::Sweep, (self.format, self.output.as_deref()), console)
    }
}

fn of_runs(rows: &[SweepRow]) -> Vec<RunRow> {
    rows.iter().map(SweepRow::run).collect()
}

/// Refuses a column that the table of these runs will not have, before they run. Losses and metrics are columns once a run has
/// some.
pub(super) fn sortable(rows: &[SweepRow], verdicts: &[Verdict], by: &str) -> Checked<()> {
    let mut table = ResultTable::of(&of_runs(rows));
    let measured = verdicts.iter().find_map(|v| match v {
        Verdict::Runs(r) => Some(&r.measured),
        Verdict::Rejected(_) => None,
    });
    for set in ["train", "test", "validation"] {
        for name in measured.into_iter().flatten() {
            let name = format!("{set}_{name}");
            if table.column(&name).is_none() {
                table.columns.push(Column::new(name, ColumnKind::Number));
                table.rows.iter_mut().for_each(|r| r.push(Cell::Missing));
            }
        }
    }
    table.sort(by)
}

/// The column to sort by after the runs: none, which is said, where no run got so far as to have it.
pub(super) fn sorted_by<'a>(
    rows: &[SweepRow],
    by: Option<&'a str>,
    console: &mut Console,
) -> Option<&'a str> {
    let by = by?;
    let found = table(rows, Some(by)).is_ok();
    if !found {
        let name = by.trim_start_matches('-');
        console.warn(&format!("no run has `{name}`: the table is in the order in which runs were planned"));
    }
    found.then_some(by)
}

fn table(rows: &[SweepRow], sort: Option<&str>) -> Checked<ResultTable> {
    let mut table = ResultTable::of(&of_runs(rows));
    sort.map_or(Ok(()), |by| table.sort(by))?;
    Ok(table)
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
        let log = dir.join(LOGS).join(log_of(&row.name));
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
    let none = with("skipped").count() == rows.len();
    if failed.is_empty() && open == 0 && !none { Ok(()) } else { Err(Stop::Diagnosed) }
}

/// There is nothing to write a job for.
pub(super) fn nothing_to_launch() -> CommandEnd {
    Box::new(wrong("all runs of the sweep are done: there is nothing to launch".into())).into()
}
