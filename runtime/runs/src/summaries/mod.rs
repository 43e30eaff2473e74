//! Runs that are there: what the folder of each says of its settings, its curves, its costs and how it ended. Tables, reports and
//! lists of runs are made of these, and of nothing else.
//!
//! **Invariant:** nothing here writes to the folder of a run but `costs`, which a run calls for itself.

mod computation_hash;
mod costs;
mod curves;
mod events;
mod find;
mod line;
mod log;
mod run_locks;
mod summary;
mod usage;

pub use costs::{RunCosts, RunEstimate};
pub use curves::{EpochPoint, EvaluationPoint, RunCurves, StepPoint};
pub use events::RunEvent;
pub use find::{FoundFolders, folders_below, run_near, runs_below};
pub use log::LogEvent;
pub use summary::{
    RunLength, RunState, RunSummary, StepTimes, at_work, at_work_in, planned_steps, read_all, read_all_with,
};
pub use usage::{ProcessUsage, RunUsage};
