//! The end of a job that has failed.

use crate::sys;
use std::time::Duration;

/// Ends all processes of the job at once with this exit code, which must not be 0, from any thread. For the end of a
/// process that has failed: the orderly end would wait for the others. It returns only where MPI is beyond that; the process
/// then has to end by itself.
pub fn abort_job(code: i32) {
    if sys::is_over() {
        return;
    }
    let aborts = std::thread::Builder::new().spawn(move || sys::abort(code));
    // It ends the process from within, unless MPI is beyond that.
    if aborts.is_ok() {
        std::thread::sleep(Duration::from_secs(3));
    }
}
