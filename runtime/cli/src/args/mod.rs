//! The options of every command.

mod bench;
pub(crate) mod cluster;
mod launch;
mod renamed;

pub(crate) use bench::*;
pub(crate) use launch::*;
pub(crate) use renamed::renamed;

use crate::pick::{self, Emit, passes_help};
use clap::{Args, Parser, Subcommand, ValueEnum};
use meshwright_plan::DType;
use meshwright_train::{ProjectOptions, TraceOptions};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Named-dimension tensor programs on a mesh of devices: a model file says what is computed, a layout file says which
/// dim is split over which mesh axis.
#[derive(Parser, Debug)]
#[command(name = "meshwright", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Color on standard error; `auto` minds NO_COLOR and whether it is a terminal.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  meshwright train mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2
  meshwright explain mnist_mlp --layout dp_mp
  meshwright explain E0310
  meshwright eval mnist_mlp --checkpoint runs/mnist_mlp-1

Exit codes: 0 success, 1 anything diagnosed, 2 usage, 101 a mistake in meshwright, 130 Ctrl-C.";

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Train a model.
    Train(TrainArgs),
    /// Measure the losses and metrics of a checkpoint over a data set.
    Eval(EvalArgs),
    /// Compute the outputs of a model for the examples of a data set.
    Predict(PredictArgs),
    /// Check a model and a layout without running anything.
    Check(CheckArgs),
    /// Show what a layout does to a model, or the page of an error code or an op.
    Explain(ExplainArgs),
    /// Format model files and layout files.
    Fmt(FmtArgs),
    /// Time whole training steps with data in memory, or collectives.
    Bench(BenchArgs),
    /// Write the file that starts a training run on the nodes of a cluster.
    Launch(LaunchArgs),
    /// List the models that ship, or print one.
    Models(ShippedArgs),
    /// List the layouts that ship, or print one.
    Layouts(ShippedArgs),
    /// Look into the checkpoints of a run.
    Ckpt(CkptArgs),
    /// List what this machine has to run on, and say why a GPU cannot be used.
    Devices(ListDevicesArgs),
    /// Print a script that completes commands and options in a shell.
    Completions(CompletionsArgs),
}

impl Command {
    /// The format of its reports.
    pub(crate) fn format(&self) -> Format {
        match self {
            Command::Train(a) => a.format.format,
            Command::Eval(a) => a.format.format,
            Command::Predict(a) => a.format.format,
            Command::Check(a) => a.format.format,
            Command::Explain(a) => a.format.format,
            Command::Fmt(a) => a.format.format,
            Command::Bench(a) => a.what.format(),
            Command::Launch(a) => a.what.common().format.format,
            Command::Models(a) | Command::Layouts(a) => a.format.format,
            Command::Ckpt(a) => a.what.args().format.format,
            Command::Devices(a) => a.format.format,
            Command::Completions(_) => Format::Text,
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

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    F32,
    F64,
    /// Products, activations and what is sent of them in bf16; parameters, sums, softmax and losses in f32.
    Bf16,
}

#[derive(Args, Debug)]
pub(crate) struct FormatArgs {
    /// Format of the report.
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(crate) format: Format,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Model and layout")]
pub(crate) struct ModelArgs {
    /// The layout: a file, the name of one that ships, or rules such as 'batch -> r; hidden -> c' (also 'batch:r;hidden:c').
    #[arg(long, value_name = "FILE|NAME|RULES")]
    pub(crate) layout: Option<String>,
    /// The mesh, in place of the layout's: r=2,c=2 (also 'r:2;c:2'). Without any, one device.
    #[arg(long, value_name = "AXES")]
    pub(crate) mesh: Option<String>,
    /// Set the size of a dim; may be repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = pick::dim)]
    pub(crate) dims: Vec<(String, usize)>,
    /// Set a `const` of the model; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pick::set, allow_hyphen_values = true)]
    pub(crate) sets: Vec<(String, f64)>,
    /// Use the values of the block `size NAME { … }` of the model.
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Arithmetic type, in place of the model's.
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,
    /// Wait for each collective where it starts, in place of computing meanwhile.
    #[arg(long)]
    pub(crate) no_overlap: bool,
    /// Fail unless the mesh has exactly N devices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) expect_devices: Option<u32>,
}

impl ModelArgs {
    /// What to load, for a model.
    pub(crate) fn options(&self, model: &str) -> ProjectOptions {
        ProjectOptions {
            model: model.into(),
            layout: self.layout.clone(),
            mesh: self.mesh.clone(),
            dims: self.dims.clone(),
            sets: self.sets.clone(),
            preset: self.preset.clone(),
            precision: self.precision.map(|p| match p {
                Precision::F32 => DType::F32,
                Precision::F64 => DType::F64,
                Precision::Bf16 => DType::BF16,
            }),
            no_overlap: self.no_overlap,
            expect_devices: self.expect_devices.map(|n| n as usize),
            ..ProjectOptions::default()
        }
    }
}

/// A model with its layout.
#[derive(Args, Debug)]
pub(crate) struct ProjectArgs {
    /// A model: the name of one that ships (see `meshwright models`), or a file.
    pub(crate) model: String,
    #[command(flatten)]
    rest: ModelArgs,
}

impl ProjectArgs {
    /// What to load.
    pub(crate) fn options(&self) -> ProjectOptions {
        self.rest.options(&self.model)
    }

    /// The model as it was named.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The words that give the same options on another command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let ModelArgs { layout, mesh, dims, sets, preset, precision, expect_devices, no_overlap } =
            &self.rest;
        let mut words = vec![self.model.clone()];
        let mut push = |option: &str, value: String| words.extend([format!("--{option}"), value]);
        let texts = [("layout", layout), ("mesh", mesh), ("preset", preset)];
        for (option, value) in texts {
            value.iter().for_each(|v| push(option, v.clone()));
        }
        dims.iter().for_each(|(name, size)| push("dim", format!("{name}={size}")));
        sets.iter().for_each(|(name, value)| push("set", format!("{name}={value}")));
        if let Some(value) = precision.and_then(|p| p.to_possible_value()) {
            push("precision", value.get_name().into());
        }
        expect_devices.iter().for_each(|n| push("expect-devices", n.to_string()));
        if *no_overlap {
            words.push("--no-overlap".into());
        }
        words
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Data and devices")]
pub(crate) struct DataArgs {
    /// The data: NAME=FILE,… for the inputs (IDX, .npy, .safetensors, also gzipped), a folder with data.toml, or the name of
    /// one. Without it, data is sought in $MESHWRIGHT_DATA, ./models/data and beside the binary.
    #[arg(long)]
    pub(crate) data: Option<String>,
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
    /// Devices are processes, or spread over processes; start these with `mpirun` or `srun`.
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

/// What computes.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// Threads of this machine.
    #[default]
    Cpu,
    /// GPUs of NVIDIA: each device of the mesh that is this process's has one.
    Cuda,
    /// What GPUs run, compiled for this machine: to test it without a GPU.
    #[value(hide = true)]
    CubeclCpu,
}

/// How GPUs communicate.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CollectivesChoice {
    /// NCCL on the GPUs' memory; the host does not wait.
    #[default]
    Nccl,
    /// NCCL, and the host waits before and after each collective: slower, to cross-check.
    NcclSync,
    /// Through the host's memory and `--transport`.
    Staged,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Data and devices")]
pub(crate) struct DevicesArgs {
    /// What computes
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
    /// How GPUs communicate [default: nccl]
    #[arg(long, value_enum)]
    pub(crate) collectives: Option<CollectivesChoice>,
    /// How devices communicate [default: mpi where a launcher started several processes, else threads]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportChoice>,
    /// Devices of this process, where a launcher started several: the GPUs of a node in one process, for example. The
    /// devices of the processes are numbered one after the other [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) devices_per_process: Option<u16>,
    /// Reduce in a fixed order, so that a rerun is equal to the last bit; threads always do.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Give up a collective in which others have not come for so long; six times that until the first step is done
    /// [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct CoresArgs {
    /// Cores to use; all that there are by default. Devices share them. Of several processes each uses so many; by default
    /// those on one machine divide its cores.
    #[arg(long, value_name = "N", help_heading = "Data and devices", value_parser = clap::value_parser!(u16).range(1..))]
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
    /// Write a timeline of some steps, all devices on one clock, for ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Which steps the timeline shows, by number, the first and the last [default: the first 20]
    #[arg(long, value_name = "A..B", requires = "trace", value_parser = pick::steps)]
    pub(crate) trace_steps: Option<RangeInclusive<u64>>,
}

impl TraceArgs {
    pub(crate) fn get(&self) -> Option<TraceOptions> {
        let file = self.trace.clone()?;
        Some(TraceOptions { file, steps: self.trace_steps.clone() })
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Passes")]
pub(crate) struct PassArgs {
    /// Print a stage of the compiler in place of the report: graph (what the partitioner is given), spmd (what it makes),
    /// plan, or after:PASS. With --format json, the plan as JSON.
    #[arg(long, value_name = "STAGE", value_parser = pick::emit)]
    pub(crate) emit: Option<Emit>,
    /// Print on standard error how long each pass took, its verifier included.
    #[arg(long)]
    pub(crate) time_passes: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright train mnist_mlp
  meshwright train mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2 --epochs 3
  meshwright train mlp --dim batch=250 --set lr=0.05 --steps 1000 --run runs/a --format json
  meshwright train mlp --layout zero3 --run runs/a --resume --steps 2000

A first Ctrl-C ends the run after the step at hand, or the batch at hand of an evaluation, with a checkpoint, and exits 130;
a second one kills it.
The folder holds the resolved settings, the plan, metrics.jsonl and the two newest checkpoints.")]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Train until so many epochs are done [default: 5, or those of the run with --resume]
    #[arg(long, value_name = "N", conflicts_with = "steps", help_heading = "Run", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs: Option<u32>,
    /// Train until so many steps are done.
    #[arg(long, value_name = "N", help_heading = "Run", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Seed of the initial values and of the order of examples [default: 0, or that of the run with --resume]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub(crate) seed: Option<u64>,
    /// The run's folder; one that holds a run is refused unless --resume [default: runs/MODEL-N, the next free N]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub(crate) run: Option<PathBuf>,
    /// Continue the run in --run from its newest checkpoint, on any mesh and layout.
    #[arg(long, requires = "run", help_heading = "Run")]
    pub(crate) resume: bool,
    /// Write nothing to disk.
    #[arg(long, conflicts_with_all = ["run", "resume"], help_heading = "Run")]
    pub(crate) no_save: bool,
    /// Do not evaluate on the test set after each epoch.
    #[arg(long, help_heading = "Run")]
    pub(crate) no_eval: bool,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright eval mnist_mlp --checkpoint runs/mnist_mlp-1
  meshwright eval mnist_mlp --checkpoint runs/mnist_mlp-1 --split train --layout dp --format json

The mesh and the layout need not be those of the training.")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) what: CheckpointArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// The folder of a run, of which the newest checkpoint is taken, or a checkpoint's .safetensors file.
    #[arg(long, value_name = "RUN|FILE")]
    pub(crate) checkpoint: PathBuf,
    /// Which set of examples.
    #[arg(long, default_value = "test")]
    pub(crate) split: String,
    #[command(flatten)]
    pub(crate) data: DataArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright predict digits.mw --checkpoint runs/digits-1 --limit 10
  meshwright predict digits.mw --checkpoint runs/digits-1 --output class --format json

An output is declared in the model: output class = argmax[classes](logits)")]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) what: CheckpointArgs,
    /// Which `output` of the model; may be repeated. All of them by default.
    #[arg(long = "output", value_name = "NAME")]
    pub(crate) outputs: Vec<String>,
    /// The first N examples only.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = passes_help(), after_long_help = format!("\
Examples:
  meshwright check my.mw
  meshwright check my.mw --layout my.layout --expect-devices 8 --format json
  meshwright check mlp --layout zero3 --emit spmd
  meshwright check my.mw --layout my.layout --fix
  meshwright check my.mw --diff

{}", passes_help()))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Write the fixes that are sure into the files of the model and the layout, and check again.
    #[arg(long, help_heading = "Fixes")]
    pub(crate) fix: bool,
    /// Show what --fix would write, as a unified diff, and write nothing.
    #[arg(long, help_heading = "Fixes")]
    pub(crate) diff: bool,
    #[command(flatten)]
    pub(crate) passes: PassArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = passes_help(), after_long_help = format!("\
Examples:
  meshwright explain mnist_mlp --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2
  meshwright explain mlp --layout zero3 --format json
  meshwright explain mlp --layout dp_mp --emit plan
  meshwright explain mlp --layout dp_mp --why logits.classes
  meshwright explain E0310
  meshwright explain softmax

{}", passes_help()))]
pub(crate) struct ExplainArgs {
    /// A model (the name of one that ships, or a file), a code such as E0310, or an op such as softmax.
    #[arg(value_name = "MODEL|CODE|OP")]
    pub(crate) topic: String,
    #[command(flatten)]
    pub(crate) project: ModelArgs,
    /// Say why a dim of a value is split as it is, or whole: VALUE is a name of the report, DIM one of its dims.
    #[arg(long, value_name = "VALUE.DIM", conflicts_with_all = ["emit", "time_passes"])]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) passes: PassArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
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

There is one style and nothing to set. Comments stay, and so does all that a file says. A file with syntax errors is left
as it is, and its errors are shown. With --check, nothing is written, and files that differ exit 1.")]
pub(crate) struct FmtArgs {
    /// Files, folders (all *.mw and *.layout below them, hidden folders left out), or `-` for standard input to output.
    #[arg(value_name = "FILE|DIR|-", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Write nothing; show how files would change.
    #[arg(long)]
    pub(crate) check: bool,
    /// The language, where no name ends in .mw or .layout [default for standard input: model]
    #[arg(long, value_enum)]
    pub(crate) language: Option<Language>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ShippedArgs {
    /// Print this one.
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The libraries of a GPU are opened by their usual names, or where MESHWRIGHT_CUDA, MESHWRIGHT_NCCL and MESHWRIGHT_NVML say.")]
pub(crate) struct ListDevicesArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CkptArgs {
    #[command(subcommand)]
    pub(crate) what: CkptWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CkptWhat {
    /// List the checkpoints of a run and their tensors.
    #[command(after_help = "Example:\n  meshwright ckpt list runs/mnist_mlp-1")]
    List(CkptListArgs),
}

impl CkptWhat {
    pub(crate) fn args(&self) -> &CkptListArgs {
        let CkptWhat::List(a) = self;
        a
    }
}

#[derive(Args, Debug)]
pub(crate) struct CkptListArgs {
    /// The run's folder.
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  meshwright completions bash > ~/.local/share/bash-completion/completions/meshwright")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
