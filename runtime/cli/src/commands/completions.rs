//! `completions`.

use crate::args::CompletionsArgs;
use crate::output::console::Console;
use crate::stop::Stop;
use clap_complete::env::Shells;

/// The name of the command.
const NAME: &str = "meshwright";

/// Runs the command: prints what has a shell ask this binary what can follow.
pub(crate) fn run(args: &CompletionsArgs, console: &mut Console) -> Result<(), Stop> {
    let shell = args.shell.to_string();
    let Some(completer) = Shells::builtins().completer(&shell).map(|c| {
        let mut script = Vec::new();
        c.write_registration("COMPLETE", NAME, NAME, NAME, &mut script).map(|()| script)
    }) else {
        return Err(Stop::Usage(format!("there are no completions for `{shell}`")));
    };
    console.out_styled(&String::from_utf8_lossy(&completer?))
}
