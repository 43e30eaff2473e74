//! How a process takes part.

use meshwright_comm::Timeouts;
use std::time::Duration;

/// How a process takes part.
#[derive(Clone, Copy, Debug)]
pub struct MpiOptions {
    /// How long it waits for others.
    pub timeouts: Timeouts,
    /// How long MPI may take to start; the time-out of the first step where nothing is said.
    pub start: Option<Duration>,
    /// Floats are folded from left to right in group order, with the same bits as on threads, instead of by MPI in an
    /// order of its own. (Everything else has the same bits anyway.)
    pub deterministic: bool,
    /// The calls of the members are compared always, and not only in the first step.
    pub compare: bool,
    /// Most elements in one call of MPI, which counts to 2^31-1; less in tests.
    pub limit: usize,
    /// The rank that the launcher has given to this process, for errors while MPI does not work.
    pub launched_as: usize,
    /// Ends this process with an exit code, where all else has failed and it would wait for ever: at once, since what libraries
    /// do at an orderly end may wait too.
    pub exit: fn(i32) -> !,
}

impl MpiOptions {
    /// Usual settings of a process that ends by `exit`.
    pub fn new(exit: fn(i32) -> !) -> MpiOptions {
        MpiOptions {
            timeouts: Timeouts::default(),
            start: None,
            deterministic: false,
            compare: false,
            limit: i32::MAX as usize,
            launched_as: 0,
            exit,
        }
    }
}
