//! `runs`: runs that are there, listed, shown, compared, plotted, exported, summarized and removed.

mod diff;
mod export;
mod listing;
mod ls;
mod plot;
mod rm;
mod run_choice;
mod show;
mod stats;

use crate::args::{RunsArgs, RunsWhat};
use crate::output::console::Console;
use crate::stop::Stop;

/// Runs the command.
pub(crate) fn run(args: &RunsArgs, console: &mut Console) -> Result<(), Stop> {
    let done = match &args.what {
        RunsWhat::Ls(a) => ls::ls(a, console),
        RunsWhat::Show(a) => show::show(a, console),
        RunsWhat::Diff(a) => diff::diff(a, console),
        RunsWhat::Plot(a) => plot::plot(a, console),
        RunsWhat::Rm(a) => rm::rm(a, console),
        RunsWhat::Export(a) => export::export(a, console),
        RunsWhat::Stats(a) => stats::stats(a, console),
    };
    done.map_err(|end| end.said(console))
}
