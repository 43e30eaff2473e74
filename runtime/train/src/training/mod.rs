//! A training run from outside: what it is asked to do, what it reports, and how it ends.

pub(super) mod evaluator;
pub(super) mod guards;
pub(super) mod history;
pub(super) mod not_finite;
pub(super) mod poles;
pub(super) mod policies;
pub(super) mod run_description;
pub(super) mod session;
pub(super) mod step_metrics;
pub(super) mod totals;
pub(super) mod trainer;
pub(super) mod training_loop;
pub(super) mod utilization;

use crate::devices::{DataOptions, Devices};
use crate::trace::TraceOptions;
use meshwright_files::Checked;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::cluster_job::ClusterJob;
use meshwright_runs::logs::LogFormat;
use meshwright_runs::metrics;
use meshwright_runs::metrics::Event;
use meshwright_runs::policies::{EvaluationPolicy, PolicySettings, SavePolicy};
use meshwright_runs::run_dir::tokenizer_in;
use meshwright_runs::settings::InitFrom;
use std::path::PathBuf;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// `--data`.
    pub data: Option<String>,
    /// Folder in which a continued run has found its data, if none is given.
    pub data_found: Option<String>,
    /// Let data pass that is infinite or not a number.
    pub allow_nonfinite: bool,
    /// Number of epochs; with neither, that of the run if one is resumed, otherwise one. `steps` takes precedence.
    pub epochs: Option<u32>,
    /// Number of steps.
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
    /// Evaluate while the run goes on: on the `validation` split, or without one on the `test` split, which with one is measured
    /// at the end.
    pub eval: bool,
    /// When to evaluate, and when to end early.
    pub evaluation: EvaluationPolicy,
    /// Which checkpoints are written and kept.
    pub saves: SavePolicy,
    /// Both policies in the words of the command line.
    pub policies: PolicySettings,
    /// The checkpoint to continue from.
    pub from: Which,
    /// Source of first values, for a run that begins.
    pub init: Option<InitFrom>,
    /// Other sinks of events.
    pub logs: Vec<LogFormat>,
    /// A file that always says how the run stands, in the text format of Prometheus. The first process writes it.
    pub metrics_file: Option<PathBuf>,
    /// Measure what the devices reach at most, where the policies do not say it: a moment before the first step.
    pub measure_peak: bool,
    /// The machine on which a step is estimated before the run, with its name.
    pub machine: Option<(String, meshwright_cost::machine::Machine)>,
    /// A timeline of some steps.
    pub trace: Option<TraceOptions>,
    /// The folder in which the command was given, and its words: they are noted with the run.
    pub folder: Option<PathBuf>,
    /// The words of the command.
    pub arguments: Vec<String>,
    /// The job of a cluster that this process is part of.
    pub job: Option<ClusterJob>,
}

impl TrainOptions {
    pub(crate) fn wanted(&self) -> Checked<DataOptions<'_>> {
        let Self { roots, allow_nonfinite, .. } = self;
        let given = self.data_found.as_deref().or(self.data.as_deref());
        Ok(DataOptions {
            given,
            roots,
            tokenizer: self.own_tokenizer()?,
            allow_nonfinite: *allow_nonfinite,
            inputs: None,
        })
    }

    /// The tokenizer of the run that goes on, or of the one whose weights it begins with: it makes tokens of a corpus that is
    /// found.
    pub(crate) fn own_tokenizer(&self) -> Checked<Option<PathBuf>> {
        if self.data.is_some() {
            return Ok(None);
        }
        match &self.run {
            Some(run) if self.resume => tokenizer_in(run),
            _ => self.init.as_ref().map_or(Ok(None), |init| tokenizer_in(&init.path)),
        }
    }
}

/// Report of a run in progress.
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
        /// Whether there is a set that is evaluated while it trains.
        evaluates: bool,
        /// Probable mistakes.
        warnings: Vec<String>,
        /// Other notes.
        notes: Vec<String>,
    },
    /// An event, with its line of `metrics.jsonl`.
    Event {
        /// The event.
        event: &'a Event,
        /// Its line, without its end.
        line: &'a str,
    },
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
        /// Model FLOPs utilization at this speed, where the peak is known.
        mfu: Option<f64>,
    },
    /// A step has updated nothing: its gradients were not finite. The loss scale is halved.
    StepSkipped {
        /// Its number, from 1.
        step: u64,
        /// Its loss scale.
        scale: f64,
    },
    /// A checkpoint is on disk.
    Checkpoint {
        /// After which step.
        step: u64,
        /// The folder of checkpoints.
        path: PathBuf,
    },
    /// Something is not finite: steps are run again with checks, to find out why.
    RunningAgain {
        /// After which step it begins.
        from: u64,
        /// After which step each is checked.
        checked: u64,
        /// The last step.
        step: u64,
        /// The value that is not finite, in words.
        why: &'a str,
    },
    /// Something that is no reason to end the run.
    Warning(String),
    /// Evaluation goes on.
    Evaluating {
        /// Examples done.
        done: usize,
        /// Examples in all.
        total: usize,
    },
}

/// End of a run.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Steps done, since the beginning.
    pub steps: u64,
    /// Epochs done, since the beginning.
    pub epochs: u32,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last evaluation, before that on the test set at the end.
    pub eval: Option<metrics::Evaluation>,
    /// The split that it was made on.
    pub eval_set: &'static str,
    /// Evaluation on the test set at the end, if earlier evaluations are on a validation set.
    pub test: Option<metrics::Evaluation>,
    /// Whether it was stopped from outside.
    pub interrupted: bool,
    /// Whether it ended because evaluations became no better.
    pub stopped_early: bool,
    /// The run's folder.
    pub run: Option<PathBuf>,
}
