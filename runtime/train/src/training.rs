//! A training run from outside: what it is asked to do, what it reports, and how it ends.

use crate::devices::Devices;
use crate::metrics::{self, Event};
use crate::trace::TraceOptions;
use std::path::PathBuf;

/// What a run is asked to do.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// `--data`.
    pub data: Option<String>,
    /// How many epochs; with neither, as many as the run where one is resumed, else one. `steps` takes precedence.
    pub epochs: Option<u32>,
    /// How many steps.
    pub steps: Option<u64>,
    /// Seed of initial values and of the order of examples. Without one it is the run's where one is resumed, else 0.
    pub seed: Option<u64>,
    /// The run's folder; without one nothing is written.
    pub run: Option<PathBuf>,
    /// Continue the run in that folder.
    pub resume: bool,
    /// Cores to use, in this process.
    pub cores: Option<usize>,
    /// The devices.
    pub devices: Devices,
    /// Folders in which data is sought.
    pub roots: Vec<PathBuf>,
    /// Evaluate on the `test` split after each epoch, if there is one.
    pub eval: bool,
    /// A timeline of some steps.
    pub trace: Option<TraceOptions>,
}

/// What a run reports while it goes on.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Once, before the first step.
    Started {
        /// Elements of all parameters.
        parameters: usize,
        /// Steps in an epoch.
        steps_per_epoch: u64,
        /// The last step of the run.
        total_steps: u64,
        /// Devices.
        devices: usize,
        /// Steps already done.
        from_step: u64,
        /// Examples in the training set.
        examples: usize,
        /// What is probably not meant.
        warnings: Vec<String>,
        /// What else is worth knowing.
        notes: Vec<String>,
    },
    /// An event, as `metrics.jsonl` has it.
    Event(&'a Event),
    /// A step is done.
    StepDone {
        /// Its number, from 1.
        step: u64,
        /// Its epoch, from 1.
        epoch: u32,
        /// Its loss.
        loss: f64,
        /// Speed since the start of the epoch.
        examples_per_second: f64,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        /// After which step.
        step: u64,
        /// The folder of checkpoints.
        path: PathBuf,
    },
    /// Evaluation goes on.
    Evaluating {
        /// Examples done.
        done: usize,
        /// Examples in all.
        total: usize,
    },
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Steps done, since the beginning.
    pub steps: u64,
    /// Epochs done, since the beginning.
    pub epochs: u32,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last evaluation.
    pub eval: Option<metrics::Evaluation>,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
    /// The run's folder.
    pub run: Option<PathBuf>,
}
