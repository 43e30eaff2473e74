//! What a process does that a test has started with others: `mpirun -n 4 meshwright-under-test transport-suite mpi ...`.

use super::faults::{ProcessFault, play};
use super::{SuiteSettings, run};
use meshwright_comm::nccl::{Checks, NcclOptions, NcclTransport, Staged};
use meshwright_comm::{CommError, Timeouts, Transport};
use meshwright_gpu::load::Paths;
use meshwright_mpi::{DeviceTransport, MpiOptions, MpiTransport, Watch, abort_job, init};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// The arguments, each with a default.
struct Args {
    options: MpiOptions,
    fault: Option<ProcessFault>,
    pause: Duration,
    /// Calls go through the memory of GPUs, those of a machine's processes one after the other.
    nccl: bool,
    /// Devices of this process, which are threads; none where the process is the device.
    devices: Option<usize>,
}

fn parse(args: &[OsString]) -> Result<Args, String> {
    let seconds = Duration::from_secs;
    let options = MpiOptions {
        timeouts: Timeouts::all(seconds(60)),
        // On a busy machine it takes longer than what a test waits for a call.
        start: Some(seconds(60)),
        compare: true,
        ..MpiOptions::new(signal_hook::low_level::exit)
    };
    let mut parsed = Args { options, fault: None, pause: Duration::ZERO, nccl: false, devices: None };
    let mut args = args.iter().map(|a| a.to_string_lossy().into_owned());
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|n| n.parse().ok()).ok_or(format!("a number is missing after {arg}"));
        match arg.as_str() {
            "mpi" => {}
            "nccl" => parsed.nccl = true,
            "--deterministic" => parsed.options.deterministic = true,
            "--unchecked" => parsed.options.compare = false,
            "--devices" => parsed.devices = Some(number()?),
            "--limit" => parsed.options.limit = number()?,
            "--pause-us" => parsed.pause = Duration::from_micros(number()? as u64),
            "--timeout-ms" => {
                parsed.options.timeouts = Timeouts::all(Duration::from_millis(number()? as u64));
            }
            name => match ProcessFault::ALL.iter().find(|(known, _)| *known == name) {
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
    match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            std::thread::spawn(move || signals.forever().for_each(|_| told_to_end(&watch)));
        }
        Err(e) => say(&e.to_string()),
    }
    let (local, of) = (transport.local_rank(), transport.local_size());
    say(&format!("rank {rank} is process {}, {local} of {of}", std::process::id()));
    match args.devices {
        Some(devices) => several(&args, transport, devices),
        None if args.nccl => {
            let played = device(&args, Box::new(transport), local);
            // Its transport is closed.
            played.map_or_else(|e| failed(rank, &e), |()| ExitCode::SUCCESS)
        }
        None => {
            let played = part(&args, &mut transport);
            finish(rank, played, transport)
        }
    }
}

/// Plays the parts of the devices of a process.
fn several(args: &Args, mut transport: MpiTransport, devices: usize) -> ExitCode {
    let (rank, local) = (transport.rank(), transport.local_rank() * devices);
    let ends = match transport.devices(devices) {
        Ok(ends) => ends,
        Err(e) => return failed(rank, &e),
    };
    let played = std::thread::scope(|scope| {
        let start = |(i, end): (usize, DeviceTransport)| {
            scope.spawn(move || {
                let rank = end.rank();
                let played = device(args, Box::new(end), local + i);
                played.inspect_err(|e| say(&format!("error [{rank}]: {e}")))
            })
        };
        let threads: Vec<_> = ends.into_iter().enumerate().map(start).collect();
        let joined: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        joined.into_iter().all(|played| matches!(played, Ok(Ok(()))))
    });
    if !played {
        // So that the others are heard too.
        std::thread::sleep(Duration::from_millis(300));
        fatal(1)
    }
    finish(rank, Ok(()), transport)
}

/// Plays the part of a device, on the GPU of that number if it is one.
fn device(args: &Args, mut control: Box<dyn Transport>, gpu: usize) -> Result<(), CommError> {
    if !args.nccl {
        return part(args, &mut *control);
    }
    let options = NcclOptions {
        paths: Paths::from_env(|name| std::env::var_os(name)),
        timeouts: args.options.timeouts,
        checks: Checks::Always,
        ..NcclOptions::default()
    };
    let mut transport = Staged(NcclTransport::new(control, gpu as u32, &options)?);
    if args.fault.is_none() {
        // From here on the host does not wait.
        transport.first_step_done();
    }
    part(args, &mut transport)
}

/// As the command does it: looks who does not answer. Then the device says where it waited, if it waits; else this does.
fn told_to_end(watch: &Watch) {
    let _known = watch.unresponsive();
    watch.interrupt();
    std::thread::sleep(Duration::from_millis(250));
    if let Some(words) = watch.last_words() {
        say(&format!("error [signal]: {words}"));
    }
    fatal(143);
}

/// A fault, or the suite.
fn part(args: &Args, transport: &mut dyn Transport) -> Result<(), CommError> {
    if let Some(fault) = args.fault {
        return play(transport, fault);
    }
    // Threads in processes fold in group order.
    let exact = !args.nccl && (args.options.deterministic || args.devices.is_some());
    let settings = SuiteSettings { exact, rounds_each: false, pause: args.pause, skips: super::NO_SKIPS };
    if !args.options.compare {
        transport.first_step_done();
    }
    let rank = transport.rank();
    let outcomes = run(transport, settings);
    match report(rank, &outcomes) {
        0 => Ok(()),
        _ => Err(CommError::Injected { rank, call: cause() }),
    }
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
    meshwright_comm::CallName::new(meshwright_comm::CollectiveKind::Barrier, &super::tag(0))
}

/// Ends all processes of the job.
fn fatal(code: i32) -> ! {
    abort_job(code);
    std::process::exit(code)
}

fn finish(rank: usize, result: Result<(), CommError>, transport: MpiTransport) -> ExitCode {
    match result.and_then(|()| transport.close()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => failed(rank, &e),
    }
}

fn failed(rank: usize, e: &CommError) -> ExitCode {
    say(&format!("error [{rank}]: {e}"));
    // So that the others are heard too.
    std::thread::sleep(Duration::from_millis(300));
    fatal(1)
}
