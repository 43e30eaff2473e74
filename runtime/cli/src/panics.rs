//! Panics are bugs of Meshwright: they are reported as internal errors, with exit code 101.

use crate::stop::Stop;
use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};

/// What follows the message of any internal error.
pub(crate) fn please_report() -> String {
    format!(
        "this is a bug in Meshwright {} ({} {}), not in your files\n  please report it with the command line, the model and the layout",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

/// Calls `f`; a panic in it, or in a thread of it, is reported on standard error.
pub(crate) fn caught(f: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
    set_hook(Box::new(|info| {
        // A library's, which becomes a diagnostic.
        if meshwright_data::panics_are_awaited() {
            return;
        }
        let message = info.payload_as_str().unwrap_or("a panic without words");
        // Checks of ours begin their message like this already.
        let message = message.strip_prefix("internal error: ").unwrap_or(message);
        let place = info.location().map(|l| format!(" ({}:{})", l.file(), l.line())).unwrap_or_default();
        let thread = std::thread::current();
        let on = thread.name().filter(|n| *n != "main").map(|n| format!(" on `{n}`")).unwrap_or_default();
        // What a device catches is reported once more, with its place in the plan.
        let more = if on.is_empty() { format!("\n  {}", please_report()) } else { String::new() };
        // Nobody is left to tell if standard error is closed.
        let _ = writeln!(stderr(), "internal error{on}: {message}{place}{more}");
    }));
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Stop::Internal(None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        let ended = caught(|| panic!("internal error: a test's"));
        drop(std::panic::take_hook());
        assert!(matches!(ended, Err(Stop::Internal(None))));
        assert!(please_report().contains(env!("CARGO_PKG_VERSION")));
    }
}
