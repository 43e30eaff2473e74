//! Why a command ends early, and the exit codes.

use std::io;

/// Exit code of success.
pub(crate) const SUCCESS: u8 = 0;
/// Exit code of a reported error.
pub(crate) const DIAGNOSED: u8 = 1;
/// Exit code of a command line that makes no sense.
pub(crate) const USAGE: u8 = 2;
/// Exit code of a bug in Meshwright.
pub(crate) const INTERNAL: u8 = 101;
/// Exit code of a run that Ctrl-C ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command ended without success.
#[derive(Debug)]
pub(crate) enum Stop {
    /// What is wrong has been said.
    Diagnosed,
    /// The command line is wrong, in these words.
    Usage(String),
    /// Standard output does not take any more.
    Output(io::Error),
    /// Ctrl-C.
    Interrupted,
    /// A panic, which its hook has reported, or one that a device caught, in these words.
    Internal(Option<String>),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        Stop::Output(e)
    }
}

/// Ends this process, and what is left of the job, after a failure that the others need not know of.
pub(crate) fn end_all(code: u8) -> ! {
    #[cfg(feature = "mpi")]
    meshwright_mpi::abort_job(i32::from(code));
    std::process::exit(i32::from(code))
}
