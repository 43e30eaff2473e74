//! The laws: what an op says of itself holds, and a layout changes no result.
//!
//! Every op of the registry is run through the real compiler and the real runtime under many layouts and compared, in
//! f64, with its oracle, which shares no role with the partitioner. Whole models equal under a few layouts are a weak
//! test: they pass with wrong roles. So each claim is tested by itself, and `mutants` shows that wrong claims, programs and
//! Plans are caught.
#![allow(clippy::unwrap_used, reason = "tests")]

// The allocator of the command.
use meshwright_cli as _;

mod attention;
#[cfg(feature = "cuda")]
mod attention_kernels;
mod caches;
mod composite;
mod devices;
mod engines;
mod equations;
mod fp8;
mod fused_chains;
mod fuzz;
mod gradient;
mod half;
mod linear;
mod lookups;
mod loop_gradients;
mod matmul_groups;
mod monoids;
mod mutants;
mod oracle;
mod orders;
mod repeat;
mod ring_permits;
mod rings;
mod rng;
mod rows;
mod sizes;
mod special_values;
mod split;
mod stored_shards;
mod subject;
mod windows;

/// Writes a figure of a suite: what ran and how long it took.
#[allow(clippy::print_stderr, reason = "shown with --nocapture and on failure")]
pub(crate) fn report(text: &str) {
    eprintln!("{text}");
}
