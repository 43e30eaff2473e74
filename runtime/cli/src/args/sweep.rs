//! The options of `sweep`.

use super::{MachineArgs, Precision, cluster};
use crate::complete;
use crate::value_parsers;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The greatest numbers that make sense, here and in the file of a sweep.
pub(crate) const MOST_SEEDS: u64 = 10_000;
pub(crate) const MOST_TRIALS: u64 = 10_000;
pub(crate) const MOST_REDUCTION: u64 = 100;
pub(crate) const MOST_JOBS: u64 = 1024;

/// How the table of a sweep is written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ResultFormat {
    /// For people: the columns that fit.
    #[default]
    Text,
    /// Comma-separated values.
    Csv,
    /// One JSON object for each run.
    Jsonl,
    /// A table of Markdown.
    Markdown,
    /// Apache Parquet; needs --output.
    Parquet,
}

/// Which combinations run.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SearchChoice {
    /// All of them.
    #[default]
    Grid,
    /// So many that are drawn at random.
    Random,
    /// Successive halving: all begin, and only the best go on to the full length.
    Halving,
}

/// What starts the runs.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepLauncher {
    /// A Slurm array job, which is written to the folder of the sweep.
    Slurm,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright sweep mnist_mlp --dim batch=10,50,100 --layout dp,tp,dp_tp --mesh 4,2x2 --seeds 3 --epochs 20 --run runs/study
  meshwright sweep mlp --set lr=0.01,0.1 --layout dp --mesh 1,2 --epochs 1 --run runs/lr --jobs 2
  meshwright sweep mlp --set lr=log:1e-3..1 --search random --trials 20 --epochs 3 --run runs/random
  meshwright sweep mlp --set lr=log:1e-3..1 --search halving --trials 27 --epochs 9 --run runs/halving
  meshwright sweep mlp --dim batch=10,100 --layout dp --mesh 4 --skip 'batch < 50' --steps 600 --timing --run runs/times
  meshwright sweep gpt --preset small --layout dp,zero3 --mesh data=8 --dim batch=64,256 --estimate --machine dgx-h100
  meshwright sweep sweep.toml
  meshwright sweep runs/study --table --sort test_loss
  meshwright sweep runs/study --table --format parquet --output study.parquet
  meshwright sweep runs/study --table --report study.html

The same command continues a sweep that was interrupted, and so does `meshwright sweep DIR`: runs that are finished stay, the
others go on from their checkpoints. Combinations that do not compile are reported and left out before anything runs. A run that
fails does not end the sweep; the exit code is then 1. Arguments after `--` are those of `meshwright train`.")]
pub(crate) struct SweepArgs {
    /// The model (a file, or the name of a model that ships); or the file of a sweep (sweep.toml), or the folder of one.
    #[arg(value_name = "MODEL|FILE.toml|DIR", required_unless_present = "file", add = ArgValueCompleter::new(complete::models))]
    pub(crate) subject: Option<String>,
    /// The file of the sweep, which says what the options of the sections below say.
    #[arg(long, value_name = "FILE.toml", conflicts_with = "subject")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) variants: VariantArgs,
    #[command(flatten)]
    pub(crate) search: SearchArgs,
    #[command(flatten)]
    pub(crate) runs: SweepRunArgs,
    #[command(flatten)]
    pub(crate) report: ResultArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// More arguments of `meshwright train`, for every run.
    #[arg(last = true, value_name = "TRAIN ARGS", allow_hyphen_values = true)]
    pub(crate) train: Vec<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Variants")]
pub(crate) struct VariantArgs {
    /// Layouts: names of layouts that ship and files, with commas between them, or rules such as 'batch -> r; hidden -> c'; may
    /// be repeated.
    #[arg(long = "layout", value_name = "NAME,…|RULES", add = ArgValueCompleter::new(complete::layouts))]
    pub(crate) layouts: Vec<String>,
    /// Meshes: sizes with commas between them (4,2x2), or one with names (r=2,c=2); may be repeated.
    #[arg(long = "mesh", value_name = "AXES")]
    pub(crate) meshes: Vec<String>,
    /// Sizes of a dim; may be repeated for other dims.
    #[arg(long = "dim", value_name = "NAME=SIZE,…", value_parser = value_parsers::dim_sizes, add = ArgValueCompleter::new(complete::dims))]
    pub(crate) dims: Vec<(String, Vec<usize>)>,
    /// Values of a `const` of the model; or, with --search random or halving, a range: NAME=0.1..0.5, or NAME=log:1e-4..1e-1 to
    /// draw its logarithm evenly. May be repeated for other consts.
    #[arg(long = "set", value_name = "NAME=VALUE,…", allow_hyphen_values = true, add = ArgValueCompleter::new(complete::consts))]
    pub(crate) sets: Vec<String>,
    /// Run everything with the seeds 0 to N-1 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_SEEDS as i64))]
    pub(crate) seeds: Option<u32>,
    /// Also run each choice on one device, without a layout: the table shows how far the others are from it.
    #[arg(long)]
    pub(crate) one_device: bool,
    /// Run only combinations for which this holds, such as 'batch >= 50 and layout != tp'; names are layout, mesh, seed, dims and
    /// consts; may be repeated.
    #[arg(long, value_name = "CONDITION")]
    pub(crate) only: Vec<String>,
    /// Leave out combinations for which this holds; may be repeated.
    #[arg(long, value_name = "CONDITION")]
    pub(crate) skip: Vec<String>,
    /// Use the values of the block `size NAME { … }` of the model.
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Arithmetic type, which overrides that of the model.
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,
    /// The data, as `train` takes it.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Epochs of each run [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: Option<u32>,
    /// Steps of each run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Search")]
pub(crate) struct SearchArgs {
    /// Which combinations run [default: grid]
    #[arg(long, value_enum)]
    pub(crate) search: Option<SearchChoice>,
    /// How many combinations are drawn; each is run with all seeds.
    #[arg(long, value_name = "N", requires = "search", value_parser = clap::value_parser!(u32).range(1..=MOST_TRIALS as i64))]
    pub(crate) trials: Option<u32>,
    /// Seed of what is drawn [default: 0]
    #[arg(long, value_name = "N", requires = "search")]
    pub(crate) search_seed: Option<u64>,
    /// What halving looks at, as `train --keep-best` has it [default: loss]
    #[arg(long, value_name = "METRIC", requires = "search")]
    pub(crate) objective: Option<String>,
    /// Of how many one goes on after each part of halving [default: 3]
    #[arg(long, value_name = "N", requires = "search", value_parser = clap::value_parser!(u32).range(2..=MOST_REDUCTION as i64))]
    pub(crate) reduction: Option<u32>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Runs")]
pub(crate) struct SweepRunArgs {
    /// Folder of the sweep: each run has a folder in it [default: runs/MODEL-sweep]
    #[arg(long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
    /// How many runs go on at once, each in a process of its own; they share the cores [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_JOBS as i64))]
    pub(crate) jobs: Option<u16>,
    /// Cores for all runs together [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cores: Option<u16>,
    /// Run alone, one after the other, so that times can be compared; a machine that is busy with something else is noted.
    #[arg(long, conflicts_with = "jobs")]
    pub(crate) timing: bool,
    /// Write a job that runs them on a cluster, and run nothing here.
    #[arg(long, value_enum, value_name = "LAUNCHER")]
    pub(crate) launch: Option<SweepLauncher>,
    /// Options of `#SBATCH` lines, such as '--time=04:00:00'; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "launch", allow_hyphen_values = true, value_parser = cluster::directive)]
    pub(crate) sbatch: Vec<String>,
    /// Module to load in the job; may be repeated.
    #[arg(long = "module", value_name = "NAME", requires = "launch")]
    pub(crate) modules: Vec<String>,
    /// Path of `meshwright` on the nodes.
    #[arg(long, value_name = "PATH", requires = "launch")]
    pub(crate) program: Option<String>,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct ResultArgs {
    /// Run nothing: print the table of a sweep that is there.
    #[arg(long, conflicts_with = "launch")]
    pub(crate) table: bool,
    /// Run nothing: print what a step of each combination would take on a machine.
    #[arg(long, conflicts_with_all = ["table", "launch", "report"])]
    pub(crate) estimate: bool,
    /// The column that rows are sorted by, in ascending order; -COLUMN is descending [default: as they were planned]
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Option<String>,
    /// Format of the table.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ResultFormat,
    /// File to write the table to [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Also write a page with the table and its charts, as `meshwright report` makes it.
    #[arg(long, value_name = "FILE.html|DIR/", value_parser = value_parsers::page(), conflicts_with = "launch")]
    pub(crate) report: Option<PathBuf>,
}
