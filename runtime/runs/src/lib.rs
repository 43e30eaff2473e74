//! The folder of a run: its settings, checkpoints, log, history and costs, what other programs read of it, and what it says once
//! it is there.
//!
//! **Invariant:** nothing here depends on the layout, nor on what computes. Checkpoints hold whole tensors by parameter path.
//! What is read from disk is checked before it is used; a bad file is a diagnostic, never a panic.

pub mod catalog;
pub mod checkpoint;
pub mod clock;
pub mod cluster_job;
mod half_made;
pub mod history;
pub mod logs;
pub mod memory;
pub mod metrics;
pub mod metrics_log;
pub mod parsed;
pub mod policies;
pub mod removal;
pub mod run_dir;
mod run_error;
pub mod settings;
mod summaries;

pub use summaries::{
    EpochPoint, EvaluationPoint, FoundFolders, LogEvent, ProcessUsage, RunCosts, RunCurves, RunEstimate,
    RunEvent, RunLength, RunState, RunSummary, RunUsage, StepPoint, StepTimes, at_work, at_work_in,
    folders_below, planned_steps, read_all, read_all_with, run_near, runs_below,
};
