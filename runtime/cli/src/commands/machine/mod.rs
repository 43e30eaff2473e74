//! Commands on what this machine has, and how fast it is.

pub(crate) mod bench;
pub(super) mod bench_collectives;
pub(crate) mod calibrate;
pub(crate) mod devices;
pub(crate) mod selftest;
