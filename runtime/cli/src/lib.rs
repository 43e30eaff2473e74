//! The command line as a library: [`main`] with the arguments gives the exit code.
//!
//! **Invariant:** this is the only place that prints, reads the environment, and decides exit codes: 0 for success, 1 for
//! reported errors, 2 for a usage error, 101 for a bug in Meshwright, 130 for a run that Ctrl-C ended.
//! Reports go to standard output; diagnostics, notes and progress to standard error. Of several processes of one run the
//! first speaks for all; another says what only it knows, after `[rank N]`.

mod args;
mod commands;
mod compare;
mod complete;
mod condition;
mod connection;
pub mod embedded;
mod gpus;
mod launch;
mod machines;
mod output;
mod panics;
mod plot;
mod refusal;
mod replace;
mod results;
mod run_places;
mod signals;
mod stop;
mod surroundings;
mod sweep;
mod templates;
mod value_parsers;

pub use surroundings::{Embedding, embed};

use args::{Cli, Command, renamed};
use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;
use meshwright_diag::render;
use meshwright_files::{DiagnosedAllocator, caches_of, keep_in};
use output::console::Console;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use stop::Stop;

/// Buffers of a step come and go by the thousand on every device's thread; the system's allocator serializes them. What holds
/// of the command in time and memory is tested with it too. What it cannot give is a diagnostic.
#[global_allocator]
static ALLOCATOR: DiagnosedAllocator = DiagnosedAllocator { end: without_memory };

/// Reports that the memory for this number of bytes is missing, without an allocation, and ends the process.
#[cold]
fn without_memory(bytes: usize) -> ! {
    let mut text = [0; 512];
    let mut rest = &mut text[..];
    // Nobody is left to tell where this fails.
    let _ = write!(
        rest,
        "error[E0401]: the system has no more memory: {bytes} bytes more could not be had\n  \
         = help: give it less to do, such as smaller sizes or fewer files at once, or more memory: see `ulimit -v`, and the limit of the container\n"
    );
    let left = rest.len();
    let _ = std::io::stderr().write_all(&text[..text.len() - left]);
    std::process::exit(1)
}

/// Runs the command line `args`, whose first word is the name of the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(exit_code(args))
}

/// [`main`], whose exit code is a number.
pub fn exit_code(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    signals::writes_fail_at_limits();
    // A shell asks what can follow, with its name in COMPLETE; `completions` prints what has it ask.
    let here = std::env::current_dir().ok();
    match CompleteEnv::with_factory(Cli::command).try_complete(args.clone(), here.as_deref()) {
        Ok(false) => {}
        Ok(true) => return stop::SUCCESS,
        Err(error) => {
            let _ = error.print();
            return stop::USAGE;
        }
    }
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            let error = renamed(&error, &args).unwrap_or(error);
            // All processes of a run have met with it. One that ended at once might have the first killed before it speaks.
            if launch::launched(|name| std::env::var(name).ok()).is_some_and(|l| !l.speaks()) {
                std::thread::sleep(std::time::Duration::from_millis(300));
            } else {
                say(&error, &args);
            }
            return if error.use_stderr() { stop::USAGE } else { stop::SUCCESS };
        }
    };
    if let Some(folder) = caches_of(|name| std::env::var_os(name)) {
        keep_in(folder);
    }
    let mut console = Console::new(cli.color, cli.command.format());
    let ended = panics::caught(|| run(cli.command, &mut console)).and_then(|()| console.flush());
    let code = match ended {
        Ok(()) => stop::SUCCESS,
        Err(why) => console.say_why(why),
    };
    console.leaves(code);
    code
}

/// Prints help, or what is wrong with a command line. What in it would steer the terminal is made visible.
fn say(error: &clap::Error, args: &[OsString]) {
    let steers = args.iter().any(|a| a.to_string_lossy().contains(render::steers));
    // Help for a pipe that is closed already is not a failure.
    let _ = if steers {
        let text = error.render().to_string();
        std::io::stderr().write_all(render::printable(&text).as_bytes())
    } else {
        error.print()
    };
}

fn run(command: Command, console: &mut Console) -> Result<(), Stop> {
    match command {
        Command::Train(a) => commands::train::run(&a, console),
        Command::Eval(a) => commands::eval::run(&a, console),
        Command::Predict(a) => commands::predict::run(&a, console),
        Command::Generate(a) => commands::generate::run(&a, console),
        Command::Check(a) => commands::model::check::run(&a, console),
        Command::Explain(a) => commands::model::explain::run(&a, console),
        Command::Compare(a) => commands::model::compare::run(&a, console),
        Command::Estimate(a) => commands::model::estimate::run(&a, console),
        Command::Calibrate(a) => commands::machine::calibrate::run(&a, console),
        Command::Search(a) => commands::model::search::run(&a, console),
        Command::Fmt(a) => commands::model::fmt::run(&a, console),
        Command::New(a) => commands::new::run(&a, console),
        Command::Launch(a) => commands::launch::run(&a, console),
        Command::Bench(a) => commands::machine::bench::run(&a, console),
        Command::Models(a) => commands::shipped_files::models(&a, console),
        Command::Layouts(a) => commands::shipped_files::layouts(&a, console),
        Command::Maps(a) => commands::shipped_files::maps(&a, console),
        Command::Machines(a) => commands::shipped_files::machines(&a, console),
        Command::Import(a) => commands::hf::import(&a, console),
        Command::Export(a) => commands::hf::export(&a, console),
        Command::Ckpt(a) => commands::ckpt::run(&a, console),
        Command::Data(a) => commands::data::run(&a, console),
        Command::Devices(a) => commands::machine::devices::run(&a, console),
        Command::Sweep(a) => commands::sweep::run(&a, console),
        Command::Runs(a) => commands::runs::run(&a, console),
        Command::Report(a) => commands::report::run(&a, console),
        Command::Selftest(a) => commands::machine::selftest::run(&a, console),
        Command::Lsp(_) => commands::lsp::run(),
        Command::Completions(a) => commands::completions::run(&a, console),
    }
}
