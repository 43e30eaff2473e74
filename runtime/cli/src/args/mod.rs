//! The options of every command.

mod bench;
mod calibrate;
mod ckpt;
pub(crate) mod cluster;
mod compare;
mod data;
mod estimate;
mod explain;
mod generate;
mod hf;
mod launch;
mod lsp;
mod model;
mod predict;
mod renamed_options;
mod report;
mod runs;
mod search;
mod selftest;
mod sweep;
mod train;

pub(crate) use bench::*;
pub(crate) use calibrate::*;
pub(crate) use ckpt::*;
pub(crate) use compare::*;
pub(crate) use data::*;
pub(crate) use estimate::*;
pub(crate) use explain::*;
pub(crate) use generate::*;
pub(crate) use hf::*;
pub(crate) use launch::*;
pub(crate) use lsp::*;
pub(crate) use model::*;
pub(crate) use predict::*;
pub(crate) use renamed_options::renamed;
pub(crate) use report::*;
pub(crate) use runs::*;
pub(crate) use search::*;
pub(crate) use selftest::*;
pub(crate) use sweep::*;
pub(crate) use train::*;

use crate::complete;
use crate::templates::TEMPLATES;
use crate::value_parsers::{self, Emit, passes_help};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use meshwright_runs::checkpoint::Which;
use meshwright_train::{ProjectOptions, TraceOptions};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Named-dimension tensor programs on a mesh of devices. A model file defines the computation; a layout file defines which
/// dim is split over which mesh axis.
#[derive(Parser, Debug)]
#[command(name = "meshwright", version = VERSION, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Color; `auto` respects NO_COLOR and uses color only on a terminal.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The version, and with what it was built.
const VERSION: &str = match (cfg!(feature = "mpi"), cfg!(feature = "cuda")) {
    (false, false) => concat!(env!("CARGO_PKG_VERSION"), " (built without features; available: mpi, cuda)"),
    (true, false) => concat!(env!("CARGO_PKG_VERSION"), " (features: mpi)"),
    (false, true) => concat!(env!("CARGO_PKG_VERSION"), " (features: cuda)"),
    (true, true) => concat!(env!("CARGO_PKG_VERSION"), " (features: mpi, cuda)"),
};

const EXAMPLES: &str = "\
Examples:
  meshwright train mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2
  meshwright explain mnist_mlp --layout dp_tp
  meshwright compare mnist_mlp --mesh 4 --layout dp --layout zero3
  meshwright explain E0310
  meshwright eval runs/mnist_mlp-1

Exit codes: 0 success, 1 an error, 2 wrong usage, 101 a bug in Meshwright, 130 Ctrl-C.";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Train a model.
    Train(TrainArgs),
    /// Train a model many times: over layouts, meshes, sizes, consts and seeds; and compare the runs in a table.
    Sweep(Box<SweepArgs>),
    /// List, compare, plot, export and remove runs.
    Runs(Box<RunsArgs>),
    /// Make a page of runs: their table, curves, times and costs; or serve it while they go on.
    Report(PageArgs),
    /// Evaluate the losses and metrics of a checkpoint on a data set.
    Eval(EvalArgs),
    /// Compute the outputs of a model for the examples of a data set.
    Predict(PredictArgs),
    /// Continue texts with a language model, token by token.
    Generate(GenerateArgs),
    /// Check a model and a layout without running them.
    Check(CheckArgs),
    /// Show what a layout does to a model, or print the page of an error code or an op.
    Explain(ExplainArgs),
    /// Compare what layouts, meshes and sizes cost a model.
    Compare(CompareArgs),
    /// Estimate the time of a training step on a machine that need not be here.
    Estimate(Box<EstimateArgs>),
    /// Measure this machine for estimates: write its machine file.
    Calibrate(CalibrateArgs),
    /// Find the layout that is fastest on a machine, with a certificate.
    Search(Box<LayoutSearchArgs>),
    /// Write a model, a layout and a data set to begin with.
    New(NewArgs),
    /// Format model files and layout files.
    Fmt(FmtArgs),
    /// Benchmark training steps with data in memory, or collectives.
    Bench(BenchArgs),
    /// Write a job file that starts a training run on a cluster.
    Launch(LaunchArgs),
    /// List the models that ship, or print one.
    Models(ShippedArgs),
    /// List the layouts that ship, or print one.
    Layouts(ShippedArgs),
    /// List the maps between models and those of Hugging Face that ship, or print one.
    Maps(ShippedArgs),
    /// List the machine files that ship, or print one.
    Machines(ShippedArgs),
    /// Inspect the checkpoints of a run.
    Ckpt(CkptArgs),
    /// Make a run of weights of another framework.
    Import(ImportArgs),
    /// Write a run for another framework.
    Export(ExportArgs),
    /// Make data to train on: tokens of text.
    Data(MakeDataArgs),
    /// List the devices of this machine, and say why a GPU cannot be used.
    Devices(ListDevicesArgs),
    /// Compare what this program says with what others have measured.
    Selftest(SelftestArgs),
    /// Serve editors: diagnostics, types, shards and collectives, names, fixes and formatting, over standard input and output.
    Lsp(LspArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
}

impl Command {
    /// The format of its reports.
    pub(crate) fn format(&self) -> Format {
        match self {
            Command::Train(a) => a.format.format,
            Command::Eval(a) => a.format.format,
            Command::Predict(a) => a.format.format,
            Command::Generate(a) => a.format.format,
            Command::Check(a) => a.format.format,
            Command::Explain(a) => a.format.format,
            Command::Sweep(a) if a.report.format == ResultFormat::Jsonl => Format::Json,
            Command::Sweep(_) | Command::Report(_) => Format::Text,
            Command::Runs(a) if a.what.json() => Format::Json,
            Command::Runs(_) => Format::Text,
            Command::Compare(a) if a.format == TableFormat::Json => Format::Json,
            Command::Compare(_) => Format::Text,
            Command::Estimate(a) => a.format.format,
            Command::Calibrate(a) => a.format.format,
            Command::Search(a) => a.format.format,
            Command::Selftest(SelftestArgs { what: Selftest::Foresight(a) }) => a.format.format,
            Command::Fmt(a) => a.format.format,
            Command::New(a) => a.format.format,
            Command::Bench(a) => a.what.format(),
            Command::Launch(a) => a.what.common().format.format,
            Command::Models(a) | Command::Layouts(a) | Command::Maps(a) | Command::Machines(a) => {
                a.format.format
            }
            Command::Import(ImportArgs { what: ImportWhat::Hf(a) }) => a.format.format,
            Command::Export(ExportArgs { what: ExportWhat::Hf(a) }) => a.format.format,
            Command::Ckpt(a) => a.what.format().format,
            Command::Data(a) => a.what.format().format,
            Command::Devices(a) => a.format.format,
            Command::Lsp(_) | Command::Completions(_) => Format::Text,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object a line; diagnostics are `{"diagnostic":…}` lines on standard error.
    Json,
}

#[derive(Args, Debug)]
pub(crate) struct FormatArgs {
    /// Format of the report.
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(crate) format: Format,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Data and devices")]
pub(crate) struct DataArgs {
    /// The data: NAME=FILE,… for the inputs (IDX, .npy, .npz, .safetensors or .csv), a folder with a data.toml, or the name of
    /// such a folder. By default $MESHWRIGHT_DATA, ./models/data and the folder of the binary are searched.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Accept infinities and NaN in the data.
    #[arg(long)]
    pub(crate) allow_nonfinite: bool,
    #[command(flatten)]
    pub(crate) cores: CoresArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
}

/// How devices communicate.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    /// All devices are threads of this process.
    Threads,
    /// Devices are MPI processes, or threads or GPUs of several processes; start them with `mpirun` or `srun`.
    Mpi,
}

impl TransportChoice {
    /// As the command line has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TransportChoice::Threads => "threads",
            TransportChoice::Mpi => "mpi",
        }
    }
}

/// Where devices compute.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// CPU threads.
    #[default]
    Cpu,
    /// NVIDIA GPUs: each device of the mesh has one.
    Cuda,
    /// The GPU code, compiled for the CPU: for tests without a GPU.
    #[value(hide = true)]
    CubeclCpu,
}

/// How GPUs communicate.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CollectivesChoice {
    /// NCCL, asynchronously.
    #[default]
    Nccl,
    /// NCCL, but the host waits before and after each collective: slower, for debugging.
    NcclSync,
    /// Through host memory and `--transport`.
    Staged,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Data and devices")]
pub(crate) struct DevicesArgs {
    /// Where to compute [default: cpu, or that of the run]
    #[arg(long, value_enum)]
    pub(crate) device: Option<DeviceChoice>,
    /// How GPUs communicate [default: nccl]
    #[arg(long, value_enum)]
    pub(crate) collectives: Option<CollectivesChoice>,
    /// How devices communicate [default: mpi if a launcher started several processes, else threads]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportChoice>,
    /// Devices in each process, if a launcher started several; for example all GPUs of a node in one process. Devices are
    /// numbered process by process [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) devices_per_process: Option<u16>,
    /// Reduce in a fixed order, so that a rerun gives the same bits; threads always do.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Time out a collective after so many seconds; until the end of the first step, after six times as many. A step of a GPU may
    /// take as long as both together [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct CoresArgs {
    /// CPU cores for each process, shared by its devices [default: all; processes on one machine divide them]
    #[arg(long, value_name = "N", help_heading = "Data and devices", value_parser = value_parsers::cores)]
    pub(crate) cores: Option<u16>,
}

impl CoresArgs {
    pub(crate) fn get(&self) -> Option<usize> {
        self.cores.map(usize::from)
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Timeline")]
pub(crate) struct TraceArgs {
    /// Write a timeline of some steps of all devices, for ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// The first and the last step of the timeline [default: the first 20 steps]
    #[arg(long, value_name = "A..B", requires = "trace", value_parser = value_parsers::steps)]
    pub(crate) trace_steps: Option<RangeInclusive<u64>>,
}

impl TraceArgs {
    pub(crate) fn get(&self) -> Option<TraceOptions> {
        let file = self.trace.clone()?;
        Some(TraceOptions { file, steps: self.trace_steps.clone() })
    }
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Passes")]
pub(crate) struct PassArgs {
    /// Print a stage of the compiler instead of the report: graph (the input of the partitioner), spmd (its output), plan, device
    /// (what one device launches), burn (the same with every operation of its Burn graphs), or after:PASS. With --format json,
    /// plan and device are JSON.
    #[arg(long, value_name = "STAGE", value_parser = value_parsers::emit)]
    pub(crate) emit: Option<Emit>,
    /// The device whose launches --emit device and --emit burn print [default: 0].
    #[arg(long, value_name = "N", requires = "emit")]
    pub(crate) rank: Option<usize>,
    /// The kind of device that is compiled for, which needs none; `cuda` is an H100 with cuBLASLt. For --emit device and --emit
    /// burn, the launches of a page, and --memory [default: cpu]; `explain` then also counts launches, bytes and memory of the
    /// device, and names the large products that no fast kernel of it computes.
    #[arg(long, value_enum, hide_default_value = true)]
    pub(crate) device: Option<DeviceChoice>,
    /// Print the time of each pass and its verifier on standard error.
    #[arg(long)]
    pub(crate) time_passes: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright eval runs/mnist_mlp-1
  meshwright eval runs/mnist_mlp-1 --split train --layout dp --mesh data=4 --format json
  meshwright eval mnist_mlp --checkpoint model.safetensors

Model, data, dims, consts, mesh, layout, precision and devices are those of the run; options override them.")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) what: CheckpointArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    /// The folder of a run; or a model (a file, or the name of a model that ships), with --checkpoint.
    #[arg(value_name = "RUN|MODEL", add = ArgValueCompleter::new(complete::models))]
    pub(crate) subject: String,
    #[command(flatten)]
    pub(crate) project: ModelArgs,
    /// The folder of a run, to use its newest checkpoint, or a .safetensors file: of a checkpoint, or of parameters by their
    /// paths that another framework wrote [default: RUN]
    #[arg(long, value_name = "RUN|FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// The step of the checkpoint, or `best` for the one that --keep-best of `train` has kept [default: the newest]
    #[arg(long, value_name = "STEP|best", value_parser = value_parsers::which)]
    pub(crate) from: Option<Which>,
    /// Which split of the data: train, validation or test [default: test]
    #[arg(long)]
    pub(crate) split: Option<String>,
    /// Use the parameters themselves where the model keeps moving averages of them (`ema`).
    #[arg(long)]
    no_ema: bool,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

impl CheckpointArgs {
    /// What to load.
    pub(crate) fn options(&self) -> ProjectOptions {
        ProjectOptions { no_ema: self.no_ema, ..self.project.options("") }
    }
}

#[derive(Args, Debug)]
#[command(after_help = passes_help(), after_long_help = format!("\
Examples:
  meshwright check my.mw
  meshwright check my.mw --layout my.layout --expect-devices 8 --format json
  meshwright check mlp --layout zero3 --emit spmd
  meshwright check gpt --layout zero3 --mesh data=8 --memory 80GiB
  meshwright check my.mw --layout my.layout --fix
  meshwright check my.mw --diff
  meshwright check my.mw --fix --unsafe-fixes

{}", passes_help()))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs<Layouts>,
    /// Apply the safe fixes to the files of the model and the layout, and check again.
    #[arg(long, help_heading = "Fixes")]
    pub(crate) fix: bool,
    /// Show the changes of --fix as a unified diff, without writing them.
    #[arg(long, help_heading = "Fixes")]
    pub(crate) diff: bool,
    /// Also apply fixes that may not be what was meant, where a mistake has only one.
    #[arg(long, help_heading = "Fixes")]
    pub(crate) unsafe_fixes: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) passes: PassArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright new digits
  meshwright new chat --template lm

The folder has a model, a layout, a small data set that was made for it, a notebook and a check for CI, and trains as it is. Replace the
data by your own.")]
pub(crate) struct NewArgs {
    /// The folder to write, which must not exist; its name is that of the model.
    pub(crate) name: PathBuf,
    /// What to begin with: a classifier of points (mlp), of images by convolutions (cnn) or a transformer (vit), a language model
    /// (lm), a masked one (bert), an autoencoder or a diffusion model of images. Without it, it is asked for at a terminal, and
    /// mlp elsewhere.
    #[arg(long, value_parser = template_names())]
    pub(crate) template: Option<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

fn template_names() -> PossibleValuesParser {
    PossibleValuesParser::new(TEMPLATES.iter().map(|t| t.name))
}

/// Which of the two languages a text is in.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Model,
    Layout,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright fmt my.mw my.layout
  meshwright fmt --check models layouts
  meshwright fmt - < my.mw
  meshwright fmt - --language layout < my.layout

There is one style, without options. Comments and meaning are preserved. A file with syntax errors is left unchanged, and its
errors are shown. With --check, nothing is written, and the exit code is 1 if a file would change.")]
pub(crate) struct FmtArgs {
    /// Files, folders (all *.mw and *.layout files below them, except in hidden folders), or `-` for standard input to output.
    #[arg(value_name = "FILE|DIR|-", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Write nothing; show the changes.
    #[arg(long)]
    pub(crate) check: bool,
    /// The language of files that end in neither .mw nor .layout [default for standard input: model]
    #[arg(long, value_enum)]
    pub(crate) language: Option<Language>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright models
  meshwright models mlp > my.mw
  meshwright layouts zero3
  meshwright maps gpt
  meshwright machines dgx-h100 > mine.machine.toml")]
pub(crate) struct ShippedArgs {
    /// Print this file.
    #[arg(add = ArgValueCompleter::new(complete::listed))]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright devices
  meshwright devices --format json

MESHWRIGHT_CUDA, MESHWRIGHT_NCCL and MESHWRIGHT_NVML override the paths of the GPU libraries.")]
pub(crate) struct ListDevicesArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  echo 'source <(meshwright completions bash)' >> ~/.bashrc
  echo 'source <(meshwright completions zsh)' >> ~/.zshrc
  meshwright completions fish > ~/.config/fish/completions/meshwright.fish

The script asks the binary: it completes models, layouts, runs, codes, and the dims and consts of the model on the command line.")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
