//! Where a table goes: to a file, or to standard output.

use super::{TableView, written};
use crate::args::ResultFormat;
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::table::Screen;
use crate::replace::{writable, write};
use crate::stop::Stop;
use meshwright_report::results::ResultTable;
use std::path::Path;

/// Refuses what could not be delivered: Parquet on a terminal, which cannot show it, and a file that cannot be written.
pub(crate) fn fits(format: ResultFormat, output: Option<&Path>) -> Result<(), CommandEnd> {
    match output {
        None if format == ResultFormat::Parquet => {
            Err(Stop::Usage("Parquet is written to a file: add `--output table.parquet`".into()).into())
        }
        None => Ok(()),
        Some(path) => Ok(writable(path)?),
    }
}

/// Prints a table, or writes it to a file.
pub(crate) fn deliver(
    table: &ResultTable,
    view: TableView,
    (format, output): (ResultFormat, Option<&Path>),
    console: &mut Console,
) -> Result<(), CommandEnd> {
    let screen = if output.is_some() { Screen::default() } else { *console.screen() };
    let bytes = written(table, format, view, &screen).map_err(|why| Stop::Internal(Some(why)))?;
    match output {
        Some(path) => Ok(write(path, &bytes)?),
        None => {
            let text = String::from_utf8_lossy(&bytes);
            match format {
                ResultFormat::Text => Ok(console.out_styled(&text)?),
                _ => Ok(console.out(&text)?),
            }
        }
    }
}
