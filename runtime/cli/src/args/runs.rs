//! The options of `runs`.

use super::{FormatArgs, ResultFormat};
use crate::complete;
use crate::value_parsers::page;
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    pub(crate) what: RunsWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RunsWhat {
    /// List runs in a table, the newest first.
    #[command(after_help = LS)]
    Ls(RunsLsArgs),
    /// Show a run: settings, state, history, results, costs, checkpoints and files.
    #[command(after_help = "\
Examples:
  meshwright runs show runs/mlp-1
  meshwright runs show mlp-1 --format json")]
    Show(RunsShowArgs),
    /// Compare runs: settings, model text, losses, and the collectives of their Plans.
    #[command(after_help = "\
Examples:
  meshwright runs diff mlp-1 mlp-2
  meshwright runs diff runs/study/dp-4-batch=50-seed=0 runs/study/zero3-4-batch=50-seed=0

All runs are compared with the first one.")]
    Diff(RunsDiffArgs),
    /// Plot a metric of runs in the terminal, or as SVG.
    #[command(after_help = "\
Examples:
  meshwright runs plot mlp-1 mlp-2
  meshwright runs plot runs/study/* --metric test_accuracy --by epoch
  meshwright runs plot mlp-1 --metric loss --smooth 20 --log --svg loss.svg

Metrics are the losses and metrics of steps (loss, train_NAME), those of evaluations (test_loss, validation_NAME), and every other
number of a step in metrics.jsonl, such as learning_rate or examples_per_second.")]
    Plot(RunsPlotArgs),
    /// Remove runs, or their old checkpoints.
    #[command(after_help = "\
Examples:
  meshwright runs rm mlp-1 mlp-2
  meshwright runs rm runs/study/* --checkpoints --yes
  meshwright runs rm mlp-1 --dry-run

Only files that the run wrote are removed; a folder that holds something else stays. A run that a process is at work in is refused.")]
    Rm(RunsRmArgs),
    /// Write the events of runs to one table.
    #[command(after_help = "\
Examples:
  meshwright runs export runs/study/* --output study.parquet
  meshwright runs export mlp-1 mlp-2 --output events.csv

A row is an event of metrics.jsonl; the first column is the run. The format is that of the extension: .csv, .jsonl or .parquet.")]
    Export(RunsExportArgs),
    /// Summarize many runs: states and causes, wall time, queue time, device hours, utilization.
    #[command(after_help = "\
Examples:
  meshwright runs stats
  meshwright runs stats runs /scratch/study --html usage.html
  meshwright runs stats runs --format csv --output usage.csv

Text is a summary; the other formats have a row for each run.")]
    Stats(RunsStatsArgs),
}

const LS: &str = "\
Examples:
  meshwright runs ls
  meshwright runs ls runs/study --only 'batch >= 50 and state = finished' --sort test_loss
  meshwright runs ls --skip 'loss > 0.5' --format csv
  meshwright runs ls runs /scratch/runs --format parquet --output runs.parquet

Conditions and --sort take the columns of the table (--format csv lists them); `loss` is the test loss, or without one the train loss.";

impl RunsWhat {
    /// Whether it reports as programs read it.
    pub(crate) fn json(&self) -> bool {
        use super::Format::Json;
        match self {
            RunsWhat::Ls(a) => a.format == ResultFormat::Jsonl,
            RunsWhat::Stats(a) => a.format == ResultFormat::Jsonl,
            RunsWhat::Show(a) => a.format.format == Json,
            RunsWhat::Diff(a) => a.format.format == Json,
            RunsWhat::Rm(a) => a.format.format == Json,
            RunsWhat::Plot(_) | RunsWhat::Export(_) => false,
        }
    }
}

/// Which runs of some folders.
#[derive(Args, Debug)]
pub(crate) struct FoundArgs {
    /// Folders; runs in all folders below are found [default: runs]
    #[arg(value_name = "DIR")]
    pub(crate) dirs: Vec<PathBuf>,
    /// Only runs for which this holds, such as 'state = failed' or 'batch >= 50 and layout != tp'; may be repeated.
    #[arg(long, value_name = "CONDITION")]
    pub(crate) only: Vec<String>,
    /// Leave out runs for which this holds; may be repeated.
    #[arg(long, value_name = "CONDITION")]
    pub(crate) skip: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct RunsLsArgs {
    #[command(flatten)]
    pub(crate) found: FoundArgs,
    /// The column that rows are sorted by, in ascending order; -COLUMN is descending [default: -started]
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// Format of the table.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ResultFormat,
    /// File to write the table to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct RunsShowArgs {
    /// The folder of the run, or its name in `runs`.
    #[arg(value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RunsDiffArgs {
    /// The folders of two or more runs, or their names in `runs`.
    #[arg(value_name = "RUN", required = true, num_args = 2.., add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

/// What a plot goes along.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlotAxis {
    /// Steps.
    #[default]
    Step,
    /// Epochs: runs with different batch sizes see the same examples at the same place.
    Epoch,
    /// Wall time of steps and evaluations, in seconds.
    Time,
}

#[derive(Args, Debug)]
pub(crate) struct RunsPlotArgs {
    /// The folders of runs, or their names in `runs`.
    #[arg(value_name = "RUN", required = true, add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<PathBuf>,
    /// What is plotted.
    #[arg(long, value_name = "NAME", default_value = "loss")]
    pub(crate) metric: String,
    /// What it is plotted along.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: PlotAxis,
    /// Plot means over the last N points.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) smooth: Option<u32>,
    /// A logarithmic scale; values that are not above 0 are left out.
    #[arg(long)]
    pub(crate) log: bool,
    /// Write the plot to a file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Characters of a line [default: those of the terminal, or 100]
    #[arg(long, value_name = "N", conflicts_with = "svg", value_parser = clap::value_parser!(u16).range(30..=1000))]
    pub(crate) width: Option<u16>,
    /// Lines of the plot [default: 20]
    #[arg(long, value_name = "N", conflicts_with = "svg", value_parser = clap::value_parser!(u16).range(5..=500))]
    pub(crate) height: Option<u16>,
}

#[derive(Args, Debug)]
pub(crate) struct RunsRmArgs {
    /// The folders of runs, or their names in `runs`.
    #[arg(value_name = "RUN", required = true, add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<PathBuf>,
    /// Remove only checkpoints: all but the newest, and the best where --keep-best of `train` has kept one.
    #[arg(long)]
    pub(crate) checkpoints: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Say what would be removed, and remove nothing.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RunsExportArgs {
    /// The folders of runs, or their names in `runs`.
    #[arg(value_name = "RUN", required = true, add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<PathBuf>,
    /// File to write: .csv, .jsonl or .parquet.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct RunsStatsArgs {
    #[command(flatten)]
    pub(crate) found: FoundArgs,
    /// Format of the report.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ResultFormat,
    /// File to write the report to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write a page with charts and the table, which loads nothing from a network.
    #[arg(long, value_name = "FILE.html|DIR/", value_parser = page())]
    pub(crate) html: Option<PathBuf>,
}
