#![allow(clippy::unwrap_used, reason = "tests")]
//! Devices that are threads, against faults. (Results against a naive reference: the suite of all transports in `tests/`.)

mod async_collectives;
mod bench;
mod failures;
mod stress;

use crate::{Buf, CommError, Group, Tag, ThreadsTransport, Timeouts, Transport, World};
use meshwright_plan::DType;
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

#[test]
fn bytes_are_checked_for_length_and_alignment() {
    let words = [0u64; 4];
    let floats: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    assert!(Buf::from_bytes(&floats[..7], DType::F32).is_err());
    let start = floats.as_ptr().align_offset(8);
    assert!(Buf::from_bytes(&floats[start + 1..start + 9], DType::F64).is_err());
    assert_eq!(Buf::from_bytes(&floats[start..start + 16], DType::PairF32).unwrap().len(), 2);
}
