//! `runs ls`: a table of runs.

use super::listing::listing;
use crate::args::{ResultFormat, RunsLsArgs};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::results::{TableView, deliver, fits};

/// The newest first.
const NEWEST: &str = "-started";

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
    deliver(&listing.table, TableView::List, (args.format, output), console)
}
