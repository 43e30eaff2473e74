//! The runs of some folders as rows of a table, and which of them a condition leaves.

use crate::args::FoundArgs;
use crate::commands::command_end::CommandEnd;
use crate::commands::new_run::RUNS;
use crate::condition::ConditionFilter;
use crate::output::console::Console;
use crate::output::text::counted;
use crate::run_places::{PlacedRun, RunPlace, places_in, runs_of};
use meshwright_files::Checked;
use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable, RunRow};
use meshwright_runs::{RunEvent, read_all};
use meshwright_sorted::SortedSet;
use std::path::{Path, PathBuf};

/// How a row calls a run that failed.
const FAILED: &str = "failed";
/// What a condition may call the loss at the end.
const LOSS: &str = "loss";

/// Runs, and what a table says of each.
pub(super) struct Listing {
    /// The runs.
    pub(super) rows: Vec<RunRow>,
    /// A row for each.
    pub(super) table: ResultTable,
}

/// The runs below the folders that are named and that the conditions leave. What cannot be read is said and left out.
pub(super) fn listing(args: &FoundArgs, console: &mut Console) -> Result<Listing, CommandEnd> {
    let mut listing = found(&args.dirs, console)?;
    listing.filter(&args.only, &args.skip)?;
    Ok(listing)
}

fn found(dirs: &[PathBuf], console: &mut Console) -> Checked<Listing> {
    let here = [PathBuf::from(RUNS)];
    let dirs = match dirs {
        [] if !Path::new(RUNS).exists() => {
            console.note("there is no folder `runs` here: name the folders of runs");
            &[]
        }
        [] => &here[..],
        named => named,
    };
    let places = places_in(dirs, &mut |empty| {
        console.note(&format!("there are no runs in `{}` or below", empty.display()));
        Ok(())
    })?;
    for place in &places {
        if let RunPlace::Unread(why) = place {
            console.warn(&why.message);
        }
    }
    let runs = runs_of(&places);
    let (there, planned): (Vec<PlacedRun>, Vec<PlacedRun>) = runs.into_iter().partition(|r| r.there);
    let paths: Vec<PathBuf> = there.iter().map(|r| r.path.clone()).collect();
    // Called as a command can name it.
    let here = Path::new(".");
    let mut rows = Vec::new();
    for (run, read) in there.iter().zip(read_all(&paths)) {
        match read {
            Ok(summary) => rows.extend(run.row(Some(summary), here)),
            Err(d) => console.warn(&format!("`{}` is left out: {}", run.path.display(), d.message)),
        }
    }
    // One whose process failed before there was a folder has ended, too.
    let failed = planned.iter().filter_map(|r| r.row(None, here)).filter(|r| r.state == FAILED);
    rows.extend(failed);
    let mut table = ResultTable::of(&rows);
    if table.column("model").is_none() {
        let model = rows.iter().map(|r| r.summary.as_ref().map(|s| s.model.clone()));
        insert(&mut table, 2, ("model", ColumnKind::Text), model.collect());
    }
    let started: Vec<Option<String>> = rows.iter().map(started).collect();
    insert(&mut table, 2, ("started", ColumnKind::Time), started);
    Ok(Listing { rows, table })
}

/// When the run began, in RFC 3339.
fn started(row: &RunRow) -> Option<String> {
    let history = RunEvent::read_all(&row.summary.as_ref()?.path).ok()?;
    history.into_iter().find(|e| !e.is_failure())?.time
}

/// Adds a column of texts.
fn insert(table: &mut ResultTable, at: usize, (name, kind): (&str, ColumnKind), cells: Vec<Option<String>>) {
    table.columns.insert(at, Column::new(name, kind));
    for (row, cell) in table.rows.iter_mut().zip(cells) {
        row.insert(at, cell.map_or(Cell::Missing, Cell::Text));
    }
}

impl Listing {
    fn filter(&mut self, only: &[String], skip: &[String]) -> Checked<()> {
        let names = self.names();
        let filter = ConditionFilter::read(only, skip, &names)?;
        let stays: Vec<bool> =
            (0..self.rows.len()).map(|at| filter.leaves(|name| self.value(at, name))).collect();
        let mut left = stays.iter();
        self.rows.retain(|_| left.next().copied().unwrap_or(false));
        let mut left = stays.iter();
        self.table.rows.retain(|_| left.next().copied().unwrap_or(false));
        Ok(())
    }

    /// What conditions may name: columns, and all dims and consts.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.table.columns.iter().map(|c| c.name.clone()).collect();
        names.push(LOSS.into());
        let summaries = || self.rows.iter().filter_map(|r| r.summary.as_ref());
        let more: SortedSet<&String> =
            summaries().flat_map(|s| s.dims.keys().chain(s.consts.keys())).collect();
        let more: Vec<String> = more.into_iter().filter(|n| !names.contains(n)).cloned().collect();
        names.extend(more);
        names
    }

    /// What a condition compares.
    fn value(&self, at: usize, name: &str) -> Option<String> {
        let cell = |name: &str| match &self.table.rows[at][self.table.column(name)?] {
            Cell::Missing => None,
            Cell::Text(text) => Some(text.clone()),
            Cell::Count(n) => Some(n.to_string()),
            Cell::Number(v) => Some(v.to_string()),
        };
        if name == LOSS {
            return cell("test_loss").or_else(|| cell("train_loss"));
        }
        let summary = self.rows[at].summary.as_ref();
        let dim = || summary?.dims.get(name).map(usize::to_string);
        let value = || summary?.consts.get(name).map(f64::to_string);
        cell(name).or_else(dim).or_else(value)
    }

    /// Says how many there are, of several folders.
    pub(super) fn counted(&self) -> String {
        counted(self.rows.len() as u64, "run")
    }
}
