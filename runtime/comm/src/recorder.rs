//! Collectives that are recorded with what a device computes, and run again with it by one launch.

use crate::{CallName, CommError, Tag};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Records calls of a [`Transport`](crate::Transport) into a graph of its device. Whether a call is recorded is the same for all
/// ranks, and so is what they launch: they agree on it beforehand.
pub trait CallRecorder {
    /// Calls from now on go into the graph that is being recorded on a stream of the device, known by its address. They have not
    /// run when they were waited for: that only orders what is recorded then.
    ///
    /// # Safety
    /// It is a stream of the device as long as calls are recorded and what was recorded is launched.
    #[expect(unsafe_code, reason = "a stream is known by its address")]
    unsafe fn start_recording(&mut self, stream: u64);

    /// Whether calls are recorded now.
    fn is_recording(&self) -> bool;

    /// Calls from now on run again. Gives what was recorded.
    fn finish_recording(&mut self) -> RecordedCalls;

    /// What was recorded is launched next; its first call has that sequence number.
    ///
    /// # Errors
    /// Where a device has failed.
    fn before_launch(&mut self, calls: &RecordedCalls, sequence: u64) -> Result<(), CommError>;

    /// It has been launched: from now on it is watched like any call.
    ///
    /// # Errors
    /// What the device refuses.
    fn after_launch(&mut self, calls: &RecordedCalls, sequence: u64) -> Result<(), CommError>;
}

/// Calls that were recorded.
#[derive(Clone, Debug, Default)]
pub struct RecordedCalls {
    /// The first.
    pub(crate) first: Option<CallName>,
    /// How many there are.
    pub(crate) count: u64,
    /// The stream that it is launched on.
    pub(crate) stream: u64,
    /// The longest time that a launch took, in nanoseconds; 0 where none has ended.
    pub(crate) longest: Arc<AtomicU64>,
}

impl RecordedCalls {
    /// How many calls were recorded: by that a launch advances the numbers of calls.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The name under which a launch is known: its first call, and that others are with it.
    pub(crate) fn name(&self, sequence: u64) -> Option<CallName> {
        let CallName { kind, tag } = self.first.clone()?;
        let what = match self.count {
            1 => tag.what,
            count => format!("{} and {} collectives after it, recorded as one", tag.what, count - 1).into(),
        };
        Some(CallName { kind, tag: Tag { sequence, what, ..tag } })
    }

    /// The time that a launch may take: computing is part of it, so it grows with what earlier launches took.
    pub(crate) fn limit(&self, first: Duration, later: Duration) -> Duration {
        match self.longest.load(Ordering::Relaxed) {
            0 => first,
            longest => later + 2 * Duration::from_nanos(longest),
        }
    }

    /// A launch took that time.
    pub(crate) fn took(&self, time: Duration) {
        self.longest.fetch_max(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }
}
