//! `completions`.

use crate::args::{Cli, CompletionsArgs};
use crate::console::Console;
use crate::stop::Stop;
use clap::CommandFactory;

/// Runs the command.
pub(crate) fn run(args: &CompletionsArgs, console: &mut Console) -> Result<(), Stop> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "meshwright", &mut script);
    console.out(&String::from_utf8_lossy(&script))
}
