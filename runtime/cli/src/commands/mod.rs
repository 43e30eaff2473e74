//! One command a file: each reads its options, calls the libraries, and reports.

pub(crate) mod bench;
mod bench_collectives;
pub(crate) mod check;
pub(crate) mod ckpt;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod data;
pub(crate) mod devices;
pub(crate) mod ends;
pub(crate) mod eval;
pub(crate) mod explain;
mod fix;
pub(crate) mod fmt;
pub(crate) mod generate;
pub(crate) mod hf;
pub(crate) mod launch;
pub(crate) mod new;
pub(crate) mod new_run;
mod passes;
pub(crate) mod predict;
mod project;
pub(crate) mod report;
pub(crate) mod runs;
pub(crate) mod shipped;
pub(crate) mod sweep;
pub(crate) mod train;
