#![allow(clippy::unwrap_used, reason = "tests")]
//! The sequence of calls on the stand-in for CUDA and NCCL: order, communicators, failures.

mod collectives;
mod failures;
mod fake;
mod links;
mod ordering;
mod processes;
mod recorded;

use super::{NcclOptions, NcclTransport};
use crate::{Group, Tag, Timeouts, Transport, World};

fn options(timeouts: Timeouts) -> NcclOptions {
    NcclOptions { paths: fake::paths(), timeouts, ..NcclOptions::default() }
}

/// Runs every GPU of a world on a thread of its own; results in ascending rank.
fn on_gpus<R: Send>(n: usize, options: &NcclOptions, device: impl Fn(NcclTransport) -> R + Sync) -> Vec<R> {
    let first = fake::gpus(n as u32);
    on_these(&(0..n as u32).map(|i| first + i).collect::<Vec<_>>(), options, device)
}

fn on_these<R: Send>(
    gpus: &[u32],
    options: &NcclOptions,
    device: impl Fn(NcclTransport) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let device = &device;
        let ends = World::new(gpus.len(), options.timeouts);
        let start = |(control, gpu): (crate::ThreadsTransport, u32)| {
            scope.spawn(move || device(NcclTransport::new(Box::new(control), gpu, options).unwrap()))
        };
        let threads: Vec<_> = ends.into_iter().zip(gpus.iter().copied()).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn world(t: &impl Transport) -> Group {
    Group::world(t.size(), t.rank()).unwrap()
}

fn tag(sequence: u64) -> Tag {
    Tag::new(sequence, format!("v{sequence}"), 10 + sequence as u32)
}
