//! What Ctrl-C and the signals by which launchers end a job do.
//!
//! The first one ends a training after the step at hand, on all ranks. A launcher also sends one to the ranks that are left
//! when another has died, and kills them soon after: what is waited for never comes then, so a rank that finds another one
//! unresponsive does not wait for the end of its step, but says where it is.

use crate::stop::INTERRUPTED;
use meshwright_sorted::SortedSet;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A signal has come.
static STOP: AtomicBool = AtomicBool::new(false);

/// Somebody looks at [`STOP`].
static LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// A bar of progress may be on the terminal.
static BAR: AtomicBool = AtomicBool::new(false);

/// From here on a file that grows beyond what the system allows (`ulimit -f`) is a write that fails, which is reported, and not
/// the end of the process without a word.
pub(crate) fn writes_fail_at_limits() {
    // Where it cannot be caught, the process ends as it would have.
    let _uncaught = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// From here on Ctrl-C clears the line of the terminal, where a bar may be.
pub(crate) fn draws_a_bar() {
    BAR.store(true, Ordering::Relaxed);
    // Where it cannot be caught, the bar stays.
    let _uncaught = handled();
}

/// Processes that this one has started, and that end with it.
static STARTED: Mutex<SortedSet<u32>> = Mutex::new(SortedSet::new());

/// From here on a process ends where a second Ctrl-C ends this one.
pub(crate) fn started(pid: u32) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
}

/// A process has ended; its number may be another's now.
pub(crate) fn ended(pid: u32) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
}

/// Ends the process and those that it has started; nothing of a bar stays on the terminal.
fn end() -> ! {
    for pid in STARTED.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
    if BAR.load(Ordering::Relaxed) {
        let _nobody_sees = std::io::stderr().write_all(b"\r\x1b[2K");
    }
    std::process::exit(i32::from(INTERRUPTED))
}

/// A pager reads from the terminal, and Ctrl-C is its own.
static PAGING: AtomicBool = AtomicBool::new(false);

/// While this lives, Ctrl-C does not end the command.
pub(crate) struct Paging(());

/// Leaves Ctrl-C to a pager.
pub(crate) fn paging() -> Paging {
    PAGING.store(true, Ordering::Relaxed);
    // Where it cannot be caught, Ctrl-C ends the command together with what it shows.
    let _uncaught = handled();
    Paging(())
}

impl Drop for Paging {
    fn drop(&mut self) {
        PAGING.store(false, Ordering::Relaxed);
    }
}

/// Catches signals; what it gives is true once one has come, and the command is expected to end then.
pub(crate) fn stop_of(note: &mut dyn FnMut(&str)) -> &'static AtomicBool {
    is_looked_at();
    catch(note);
    &STOP
}

/// The same of a command that looks at it later: until it [`is_looked_at`], a signal ends the command at once.
pub(crate) fn stop_of_later(note: &mut dyn FnMut(&str)) -> &'static AtomicBool {
    catch(note);
    &STOP
}

/// From here on the command ends by itself once a signal has come.
pub(crate) fn is_looked_at() {
    LOOKED_AT.store(true, Ordering::Relaxed);
}

/// Signals are those of a program that the command is a part of.
static ANOTHERS: AtomicBool = AtomicBool::new(false);

/// From here on signals are left to the program that the command is a part of, and none has come.
pub(crate) fn left_to_caller() {
    ANOTHERS.store(true, Ordering::Relaxed);
    STOP.store(false, Ordering::Relaxed);
}

/// Whether they are.
pub(crate) fn are_left_to_caller() -> bool {
    ANOTHERS.load(Ordering::Relaxed)
}

/// What is going on is to end as Ctrl-C would have it.
pub(crate) fn ask_to_stop() {
    STOP.store(true, Ordering::Relaxed);
}

fn handled() -> &'static io::Result<()> {
    static HANDLER: OnceLock<io::Result<()>> = OnceLock::new();
    static NONE: io::Result<()> = Ok(());
    if are_left_to_caller() {
        return &NONE;
    }
    HANDLER.get_or_init(|| {
        let ignored = ignored_at_start();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP].iter().filter(|s| !ignored.contains(s)))?;
        let hear = move || signals.forever().for_each(|_| heard());
        std::thread::Builder::new().name("signals".into()).spawn(hear)?;
        Ok(())
    })
}

/// The signals that whoever started the command had it ignore, as `nohup` does: they stay ignored.
fn ignored_at_start() -> Vec<i32> {
    // Where the system does not say, there are none.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

fn catch(note: &mut dyn FnMut(&str)) {
    if let Err(e) = handled() {
        note(&format!("Ctrl-C will end the run without a checkpoint: {e}"));
    }
}

fn heard() {
    if PAGING.load(Ordering::Relaxed) {
        return;
    }
    if STOP.swap(true, Ordering::Relaxed) {
        end();
    }
    #[cfg(feature = "mpi")]
    if let Some(watch) = ranks::WATCH.get() {
        // This thread must hear the next one.
        let _unable = std::thread::Builder::new().spawn(|| ranks::told(watch));
        return;
    }
    if !LOOKED_AT.load(Ordering::Relaxed) {
        end();
    }
}

#[cfg(feature = "mpi")]
pub(crate) use ranks::watched;

#[cfg(feature = "mpi")]
mod ranks {
    use super::{INTERRUPTED, LOOKED_AT, catch};
    use crate::stop::end_all;
    use meshwright_mpi::Watch;
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::Ordering;

    pub(super) static WATCH: OnceLock<Watch> = OnceLock::new();

    /// From here on a signal has this rank look after the others.
    pub(crate) fn watched(watch: Watch, note: &mut dyn FnMut(&str)) {
        // There is one world in a process.
        let _again = WATCH.set(watch);
        catch(note);
    }

    pub(super) fn told(watch: &Watch) {
        if watch.unresponsive().is_empty() {
            // Nobody is missing: it was meant as Ctrl-C.
            if !LOOKED_AT.load(Ordering::Relaxed) {
                end_all(INTERRUPTED);
            }
            return;
        }
        watch.interrupt();
        // A device that computes does not come to say where it is.
        if let Some(words) = watch.last_words() {
            let _nobody_listens = writeln!(std::io::stderr(), "error: {words}");
        }
    }
}
