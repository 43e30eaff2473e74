//! One command a file: each reads its options, calls the libraries, and reports.

pub(crate) mod ckpt;
pub(crate) mod command_end;
pub(crate) mod completions;
pub(crate) mod data;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod hf;
pub(crate) mod launch;
pub(crate) mod lsp;
pub(crate) mod machine;
pub(crate) mod model;
pub(crate) mod new;
pub(crate) mod new_run;
pub(crate) mod predict;
pub(crate) mod project;
pub(crate) mod report;
pub(crate) mod runs;
pub(crate) mod shipped_files;
pub(crate) mod sweep;
pub(crate) mod train;
