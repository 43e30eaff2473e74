//! What a process does that a test has started with others: `mpirun -n 4 meshwright-under-test transport-suite mpi ...`.

use super::faults::{Fault, play};
use super::{Settings, run};
use meshwright_comm::gpu::load::Paths;
use meshwright_comm::mpi::{MpiOptions, MpiTransport, Watch, fatal, init};
use meshwright_comm::nccl::{NcclOptions, NcclTransport, Staged};
use meshwright_comm::{CommError, Timeouts, Transport};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// The arguments, each with a default.
struct Args {
    options: MpiOptions,
    fault: Option<Fault>,
    pause: Duration,
    /// Calls go through the memory of GPUs, a GPU for each process of a machine.
    nccl: bool,
}

fn parse(args: &[OsString]) -> Result<Args, String> {
    let seconds = Duration::from_secs;
    let options = MpiOptions { timeouts: Timeouts::all(seconds(60)), compare: true, ..MpiOptions::default() };
    let mut parsed = Args { options, fault: None, pause: Duration::ZERO, nccl: false };
    let mut args = args.iter().map(|a| a.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse().ok()).ok_or(format!("a number is missing after {arg}"));
        match arg.as_str() {
            "mpi" => {}
            "nccl" => parsed.nccl = true,
            "--deterministic" => parsed.options.deterministic = true,
            "--unchecked" => parsed.options.compare = false,
            "--limit" => parsed.options.limit = number()?,
            "--pause-us" => parsed.pause = Duration::from_micros(number()? as u64),
            "--timeout-ms" => {
                parsed.options.timeouts = Timeouts::all(Duration::from_millis(number()? as u64));
            }
            name => match Fault::ALL.iter().find(|(known, _)| *known == name) {
                Some((_, fault)) => parsed.fault = Some(*fault),
                None => return Err(format!("no fault is called {name}")),
            },
        }
    }
    Ok(parsed)
}

fn say(text: &str) {
    // At once, since several processes write to the same end.
    let _nobody_listens = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Plays the part of a process; `args` follow `transport-suite`.
pub(super) fn main(args: &[OsString]) -> ExitCode {
    let args = match parse(args) {
        Ok(args) => args,
        Err(e) => {
            say(&e);
            return ExitCode::from(2);
        }
    };
    let mut transport = match init(args.options) {
        Ok(transport) => transport,
        Err(e) => {
            say(&e.to_string());
            return ExitCode::FAILURE;
        }
    };
    let watch = transport.watch();
    let rank = transport.rank();
    if let Err(e) = ctrlc::set_handler(move || told_to_end(&watch)) {
        say(&e.to_string());
    }
    let (local, of) = (transport.local_rank(), transport.local_size());
    say(&format!("rank {rank} is process {}, {local} of {of}", std::process::id()));
    match args.fault {
        Some(fault) => finish(rank, play(&mut transport, fault), transport),
        None => suite(&args, transport),
    }
}

/// The device says where it waited, if it waits; else this does.
fn told_to_end(watch: &Watch) {
    watch.interrupt();
    std::thread::sleep(Duration::from_millis(400));
    if let Some(words) = watch.last_words() {
        say(&format!("error [signal]: {words}"));
    }
    fatal(143);
}

fn suite(args: &Args, mut transport: MpiTransport) -> ExitCode {
    if args.nccl {
        return on_gpus(args, transport);
    }
    let settings = Settings { exact: args.options.deterministic, pause: args.pause, skips: super::NO_SKIPS };
    if !args.options.compare {
        transport.first_step_done();
    }
    let rank = transport.rank();
    let outcomes = run(&mut transport, settings);
    let failed = report(rank, &outcomes);
    let ended = if failed == 0 { Ok(()) } else { Err(CommError::Injected { rank, call: cause() }) };
    finish(rank, ended, transport)
}

/// The suite through NCCL, with the processes as its control plane.
fn on_gpus(args: &Args, transport: MpiTransport) -> ExitCode {
    let (rank, ordinal) = (transport.rank(), transport.local_rank() as u32);
    let options = NcclOptions {
        paths: Paths::from_env(|name| std::env::var_os(name)),
        timeouts: args.options.timeouts,
        ..NcclOptions::default()
    };
    let mut transport = match NcclTransport::new(Box::new(transport), ordinal, &options) {
        Ok(transport) => Staged(transport),
        Err(e) => {
            say(&format!("error [{rank}]: {e}"));
            fatal(1)
        }
    };
    let settings = Settings { exact: false, pause: args.pause, skips: super::NO_SKIPS };
    let outcomes = run(&mut transport, settings);
    if report(rank, &outcomes) > 0 {
        fatal(1)
    }
    ExitCode::SUCCESS
}

/// Prints what failed and how many did.
fn report(rank: usize, outcomes: &[super::Outcome]) -> usize {
    let mut failed = 0;
    for (name, result) in outcomes {
        if let Err(e) = result {
            failed += 1;
            say(&format!("rank {rank}: {name}: {e}"));
        }
    }
    let _nobody_listens =
        writeln!(std::io::stdout(), "rank {rank}: {} cases, {failed} failed", outcomes.len());
    failed
}

fn cause() -> meshwright_comm::CallName {
    meshwright_comm::CallName { kind: meshwright_comm::Kind::Barrier, tag: super::tag(0) }
}

fn finish(rank: usize, result: Result<(), CommError>, transport: MpiTransport) -> ExitCode {
    match result.and_then(|()| transport.close()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("error [{rank}]: {e}"));
            // So that the others are heard too.
            std::thread::sleep(Duration::from_millis(300));
            fatal(1)
        }
    }
}
