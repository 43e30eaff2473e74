#![allow(clippy::unwrap_used, reason = "tests")]
//! Devices that are threads, against a naive reference and against faults.

mod bench;
pub(crate) mod collectives;
mod failures;
mod flight;
mod stress;
mod values;

use crate::{CommError, Group, Tag, ThreadsTransport, Timeouts, Transport, World};
use std::time::Duration;

/// Runs every device of a world on a thread of its own; results in ascending rank.
fn on_all<R: Send>(n: usize, timeouts: Timeouts, device: impl Fn(ThreadsTransport) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let device = &device;
        let ends = World::new(n, timeouts);
        let threads: Vec<_> = ends.into_iter().map(|t| scope.spawn(move || device(t))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// As [`on_all`], for devices that may panic: `None` where one did.
fn on_all_that_live<R: Send>(n: usize, device: impl Fn(ThreadsTransport) -> R + Sync) -> Vec<Option<R>> {
    on_all(n, Timeouts::for_tests(), |t| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device(t))).ok()
    })
}

fn world(t: &impl Transport) -> Group {
    Group::world(t.size(), t.rank()).unwrap()
}

fn tag(sequence: u64) -> Tag {
    Tag::new(sequence, format!("v{sequence}"), 10 + sequence as u32)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The errors, where all devices of a test should fail.
fn errors(results: Vec<Result<(), CommError>>) -> Vec<CommError> {
    results.into_iter().map(Result::unwrap_err).collect()
}
