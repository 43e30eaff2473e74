//! `runs ls`: a table of runs.

use super::listing::listing;
use crate::args::{ResultFormat, RunsLsArgs};
use crate::commands::ends::CommandEnd;
use crate::console::Console;
use crate::results::{TableView, written};
use crate::stop::Stop;
use crate::sweep::results::write;
use crate::table::Screen;
use meshwright_report::results::ResultTable;
use std::path::Path;

/// The newest first.
const NEWEST: &str = "-started";

/// Refuses Parquet without a file: a terminal cannot show it.
pub(super) fn fits(format: ResultFormat, output: Option<&Path>) -> Result<(), Stop> {
    match output {
        None if format == ResultFormat::Parquet => {
            Err(Stop::Usage("Parquet is written to a file: add `--output runs.parquet`".into()))
        }
        _ => Ok(()),
    }
}

/// Prints a table, or writes it to a file.
pub(super) fn print(
    table: &ResultTable,
    (format, output): (ResultFormat, Option<&Path>),
    console: &mut Console,
) -> Result<(), CommandEnd> {
    let screen = if output.is_some() { Screen::default() } else { *console.screen() };
    let bytes = written(table, format, TableView::List, &screen).map_err(|why| Stop::Internal(Some(why)))?;
    match output {
        Some(path) => Ok(write(path, &bytes)?),
        None => Ok(console.out(&String::from_utf8_lossy(&bytes))?),
    }
}

/// Runs the command.
pub(super) fn ls(args: &RunsLsArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let output = args.output.as_deref();
    fits(args.format, output)?;
    let mut listing = listing(&args.found, console)?;
    listing.table.sort(args.sort.as_deref().unwrap_or(NEWEST))?;
    if listing.rows.is_empty() && args.format == ResultFormat::Text {
        console.note("no run is left to list");
        return Ok(());
    }
    print(&listing.table, (args.format, output), console)
}
