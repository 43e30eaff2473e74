//! The options of `train`.

use super::{DataArgs, FormatArgs, MachineArgs, OwnArgs, TraceArgs};
use crate::value_parsers;
use clap::{ArgGroup, Args, ValueEnum};
use meshwright_runs::checkpoint::Which;
use meshwright_runs::policies::PolicySettings;
use meshwright_runs::settings::InitFrom;
use meshwright_train::ProjectOptions;
use meshwright_train::reports_of;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("begins").args(["resume", "init"]).multiple(true), after_help = "\
Examples:
  meshwright train mnist_mlp
  meshwright train mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2 --epochs 3
  meshwright train mlp --dim batch=250 --set lr=0.05 --steps 1000 --run runs/a --format json
  meshwright train --run runs/a --resume --steps 2000
  meshwright train mlp --run runs/b --resume=auto
  meshwright train my.mw --init runs/pretrained-1 --init-map 'encoder.* = enc.*'
  meshwright train mlp --eval-every 200 --patience 5 --keep-best accuracy --checkpoint-every 10min --log tensorboard
  meshwright train gpt --preset tiny --data tokens --peak-flops 989e12
  meshwright train mlp --metrics-file /var/lib/node_exporter/mlp.prom

The first Ctrl-C ends the run after the current step, or the current batch of an evaluation, with a checkpoint and exit code
130; the second one kills it.
The folder of a run has the resolved settings, the plan, metrics.jsonl, history.jsonl and the newest checkpoints.")]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) project: OwnArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Total number of epochs, including those before --resume [default: 5, or that of the resumed run]
    #[arg(long, value_name = "N", conflicts_with = "steps", help_heading = "Run", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: Option<u32>,
    /// Total number of steps, including those before --resume.
    #[arg(long, value_name = "N", help_heading = "Run", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Seed of the initial values and of the order of examples [default: 0, or that of the resumed run]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) seed: Option<u64>,
    /// Folder of the run; must not contain a run, except with --resume [default: runs/MODEL-N with the next free N]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub(crate) run: Option<PathBuf>,
    /// Continue the run in the folder --run from its newest checkpoint. Model, data, dims, consts, mesh, layout, precision and
    /// devices are those of the run; options override them. `--resume=auto` starts the run where there is none.
    #[arg(long, requires = "run", help_heading = "Run", value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "always", value_enum)]
    pub(crate) resume: Option<ResumeChoice>,
    /// Take first values of parameters and states from another run, or from a file of any framework: values of the same path, or
    /// those that --init-map names, and draw the others. Dims and consts that are not given are those of the run, if it is of the
    /// same model.
    #[arg(long, value_name = "RUN|FILE.safetensors", help_heading = "Run")]
    pub(crate) init: Option<PathBuf>,
    /// Which tensor of --init is which of the model's: 'encoder.* = enc.*; head.w = fc.weight transposed', or a file of such
    /// rules, or those for a model of Hugging Face (`hf:gpt`); may be repeated, and the first rule that matches a path counts.
    /// Rules such as 'word[0..11] = word', 'word[2..] = word' and 'layers[..2].* = other.*' are for a part: the rest is drawn.
    #[arg(long, value_name = "RULES|FILE", requires = "init", help_heading = "Run")]
    pub(crate) init_map: Vec<String>,
    /// Continue, or take first values, from the checkpoint of this step, or from the `best`, instead of the newest (`ckpt list`
    /// lists them). With --init it is the checkpoint of that.
    #[arg(long, value_name = "STEP|best", requires = "begins", help_heading = "Run", value_parser = value_parsers::which)]
    pub(crate) from: Option<Which>,
    /// Write nothing to disk.
    #[arg(long, conflicts_with_all = ["run", "resume", "checkpoint_every", "keep", "keep_best", "logs"], help_heading = "Run")]
    pub(crate) no_save: bool,
    /// Operations a second that a device reaches at most, such as 989e12, for model FLOPs utilization (`mfu` in metrics.jsonl)
    /// [default: measured by a matrix product before the first step, or that of the resumed run]
    #[arg(long, value_name = "NUMBER", help_heading = "Run", value_parser = value_parsers::peak)]
    pub(crate) peak_flops: Option<f64>,
    /// Keep a file that says how the run stands, for Prometheus: the textfile collector of the node exporter reads it. It has
    /// step, losses, speed, utilization, memory and communication, is replaced as a whole every 5 s, and at the end says how the
    /// run ended. One file for each run; --resume needs it again.
    #[arg(long, value_name = "FILE.prom", help_heading = "Run", value_parser = value_parsers::prom)]
    pub(crate) metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) saves: SaveArgs,
    #[command(flatten)]
    pub(crate) evaluation: EvaluationArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Checkpoints and logs")]
pub(crate) struct SaveArgs {
    /// Write a checkpoint each N steps, or when this time has passed since the last (`90s`, `10min`, `2h`); besides those before
    /// evaluations, at the ends of epochs and at the end.
    #[arg(long, value_name = "N|TIME", value_parser = value_parsers::save_every)]
    pub(crate) checkpoint_every: Option<String>,
    /// Keep the N newest checkpoints [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) keep: Option<u16>,
    /// Keep the best checkpoint too, by `loss`, another loss or a metric of the evaluations. Of losses less is better, of metrics
    /// what the model says (`metric max accuracy`); `min:NAME` and `max:NAME` say it here.
    #[arg(long, value_name = "METRIC")]
    pub(crate) keep_best: Option<String>,
    /// Metrics to compute on the batch of every step, such as accuracy; gradient_norm is the norm of all gradients, which is
    /// also printed if the model clips it.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) metrics: Vec<String>,
    /// Write the metrics in another form too: csv (RUN/metrics.csv) or tensorboard (RUN/tensorboard); may be repeated.
    #[arg(long = "log", value_name = "FORM", value_enum)]
    pub(crate) logs: Vec<LogChoice>,
}

/// Another form of the metrics.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogChoice {
    Csv,
    Tensorboard,
}

impl TrainArgs {
    /// What to load; without a model where none is named.
    pub(crate) fn options(&self) -> ProjectOptions {
        ProjectOptions { reports: reports_of(&self.policies()), ..self.project.options() }
    }

    /// Where first values come from.
    pub(crate) fn init(&self) -> Option<InitFrom> {
        let (path, map) = (self.init.clone()?, self.init_map.clone());
        Some(InitFrom { path, map, which: self.from.unwrap_or_default() })
    }

    /// The checkpoint to continue from.
    pub(crate) fn goes_on_from(&self) -> Which {
        self.from.filter(|_| self.init.is_none()).unwrap_or_default()
    }

    /// When to save and to evaluate, and what to tell.
    pub(crate) fn policies(&self) -> PolicySettings {
        let (saves, evaluation) = (&self.saves, &self.evaluation);
        let form = |l: &LogChoice| l.to_possible_value().map(|v| v.get_name().to_string());
        PolicySettings {
            checkpoint_every: saves.checkpoint_every.clone(),
            keep: saves.keep,
            keep_best: saves.keep_best.clone(),
            metrics: saves.metrics.clone(),
            log: saves.logs.iter().filter_map(form).collect(),
            validation: evaluation.validation,
            eval_every: evaluation.eval_every,
            patience: evaluation.patience,
            monitor: evaluation.monitor.clone(),
            peak_flops: self.peak_flops,
        }
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Evaluation")]
pub(crate) struct EvaluationArgs {
    /// Do not evaluate. Otherwise a run is evaluated on the validation set, or without one on the test set, which with one is
    /// measured at the end.
    #[arg(long)]
    pub(crate) no_eval: bool,
    /// Hold out this share of the training set to validate on, such as 0.1: the same examples in every run. Data may also have a
    /// validation set of its own.
    #[arg(long, value_name = "SHARE", conflicts_with = "no_eval", value_parser = value_parsers::share)]
    pub(crate) validation: Option<f64>,
    /// Evaluate each N steps, and not at the end of each epoch.
    #[arg(long, value_name = "N", conflicts_with = "no_eval", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) eval_every: Option<u64>,
    /// End the run after N evaluations in a row that are no better than the best.
    #[arg(long, value_name = "N", conflicts_with = "no_eval", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) patience: Option<u32>,
    /// What --patience looks at, as --keep-best has it [default: loss]
    #[arg(long, value_name = "METRIC", requires = "patience")]
    pub(crate) monitor: Option<String>,
}

/// When a run is continued.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumeChoice {
    /// It must be there.
    Always,
    /// Where it is there; else it is started.
    Auto,
}
