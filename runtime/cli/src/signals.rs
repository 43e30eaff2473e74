//! What Ctrl-C and the signals by which launchers end a job do.
//!
//! The first one ends a training after the step at hand, on all ranks. A launcher also sends one to the ranks that are left
//! when another has died, and kills them soon after: what is waited for never comes then, so a rank that finds another one
//! unresponsive does not wait for the end of its step, but says where it is.

use crate::stop::INTERRUPTED;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal has come.
static STOP: AtomicBool = AtomicBool::new(false);

/// Somebody looks at [`STOP`].
static LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// A bar of progress may be on the terminal.
static BAR: AtomicBool = AtomicBool::new(false);

/// From here on Ctrl-C clears the line of the terminal, where a bar may be.
pub(crate) fn draws_a_bar() {
    BAR.store(true, Ordering::Relaxed);
    // Where it cannot be caught, the bar stays.
    let _uncaught = handled();
}

/// Ends the process; nothing of a bar stays on the terminal.
fn end() -> ! {
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
    LOOKED_AT.store(true, Ordering::Relaxed);
    catch(note);
    &STOP
}

fn handled() -> &'static Result<(), ctrlc::Error> {
    static HANDLER: OnceLock<Result<(), ctrlc::Error>> = OnceLock::new();
    HANDLER.get_or_init(|| ctrlc::set_handler(heard))
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
    use meshwright_comm::mpi::Watch;
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
