//! The options of every command.

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
    /// Colour on standard error; `auto` minds NO_COLOR and whether it is a terminal.
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
    /// Take the sizes of `size NAME { … }` of the model.
    #[arg(long, value_name = "NAME")]
    pub(crate) size: Option<String>,
    /// Arithmetic type, in place of the model's.
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,
    /// Wait for each collective where it starts, in place of computing meanwhile.
    #[arg(long)]
    pub(crate) no_overlap: bool,
    /// Fail unless the mesh has so many devices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) devices: Option<u32>,
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
            size: self.size.clone(),
            precision: self.precision.map(|p| match p {
                Precision::F32 => DType::F32,
                Precision::F64 => DType::F64,
                Precision::Bf16 => DType::BF16,
            }),
            no_overlap: self.no_overlap,
            devices: self.devices.map(|n| n as usize),
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
        let ModelArgs { layout, mesh, dims, sets, size, precision, devices, no_overlap } = &self.rest;
        let mut words = vec![self.model.clone()];
        let mut push = |option: &str, value: String| words.extend([format!("--{option}"), value]);
        let texts = [("layout", layout), ("mesh", mesh), ("size", size)];
        for (option, value) in texts {
            value.iter().for_each(|v| push(option, v.clone()));
        }
        dims.iter().for_each(|(name, size)| push("dim", format!("{name}={size}")));
        sets.iter().for_each(|(name, value)| push("set", format!("{name}={value}")));
        if let Some(value) = precision.and_then(|p| p.to_possible_value()) {
            push("precision", value.get_name().into());
        }
        devices.iter().for_each(|n| push("devices", n.to_string()));
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
    pub(crate) threads: ThreadsArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
}

/// How devices communicate.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    /// All devices are threads of this process.
    Threads,
    /// Each device is a process; start them with `mpirun` or `srun`.
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

#[derive(Args, Debug)]
#[command(next_help_heading = "Data and devices")]
pub(crate) struct DevicesArgs {
    /// What computes
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
    /// How devices communicate [default: mpi where a launcher started several processes, else threads]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<TransportChoice>,
    /// Reduce in a fixed order, so that a rerun is equal to the last bit; threads always do.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Give up a collective in which others have not come for so long; six times that until the first step is done
    /// [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct ThreadsArgs {
    /// Cores to use; all that there are by default. Devices share them. Of several processes each uses so many; by default
    /// those on one machine divide its cores.
    #[arg(long, value_name = "N", help_heading = "Data and devices", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
}

impl ThreadsArgs {
    pub(crate) fn get(&self) -> Option<usize> {
        self.threads.map(usize::from)
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
    pub(crate) no_run: bool,
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
  meshwright check my.mw --layout my.layout --devices 8 --format json
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
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchWhat {
    /// Time whole training steps of a model.
    #[command(after_help = "\
Examples:
  meshwright bench model mlp --steps 40
  meshwright bench model mlp --layout dp_mp --dim batch=1000 --format json")]
    Model(BenchModelArgs),
    /// Time the collectives between devices, by size, and compare every element of their results.
    #[command(after_help = "\
Examples:
  meshwright bench collectives
  meshwright bench collectives --op all --devices 8 --max 1MiB
  meshwright bench collectives --mesh r=2,c=2 --op all_reduce,all_gather --type f64 --format json

In the manner of nccl-tests: the time of a call is that of its slowest device; `time` is the median of the calls and `least`
the shortest. The size is that of the greater of a device's two buffers. algbw is size over time; busbw is algbw times what
must be moved for each byte, which for n devices is 2(n-1)/n (all_reduce), (n-1)/n (all_gather, reduce_scatter, all_to_all)
or 1 (permute, broadcast). GB/s are 10^9 bytes a second. Wrong elements end the command with code 1.")]
    Collectives(BenchCollectivesArgs),
}

impl BenchWhat {
    pub(crate) fn format(&self) -> Format {
        match self {
            BenchWhat::Model(a) => a.format.format,
            BenchWhat::Collectives(a) => a.format.format,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct BenchCollectivesArgs {
    /// The mesh, such as all=4; its devices form one group.
    #[arg(long, value_name = "AXES", conflicts_with = "devices")]
    pub(crate) mesh: Option<String>,
    /// How many devices [default: as many as there are processes; 4 threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices: Option<u32>,
    /// How devices communicate [default: mpi where a launcher started several processes, else threads]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<BenchTransport>,
    /// Which collectives, separated by commas.
    #[arg(long = "op", value_enum, value_name = "OP", value_delimiter = ',', default_value = "all_reduce")]
    pub(crate) ops: Vec<BenchOp>,
    /// Least size, such as 4KiB, 64_000 or 1MB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = pick::size)]
    pub(crate) min: usize,
    /// Greatest size.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = pick::size)]
    pub(crate) max: usize,
    /// Each size is so many times the one before.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: u32,
    /// Type of the elements.
    #[arg(long = "type", value_enum, default_value_t)]
    pub(crate) dtype: BenchType,
    /// How all_reduce and reduce_scatter fold.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) redop: BenchFold,
    /// Timed calls of each size [default: as many as move 1 GiB, but 20 to 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: Option<u32>,
    /// Calls before them.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) warmup: u32,
    /// Calls after them in which every element is compared; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) check: u32,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchTransport {
    /// Devices are threads.
    Threads,
    /// Each device is a process; start them with `mpirun` or `srun`.
    Mpi,
    /// Devices are the first GPUs of this machine, and buffers are in their memory.
    Nccl,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub(crate) enum BenchOp {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// Each device sends its buffer to the next.
    Permute,
    Broadcast,
    /// All of them.
    All,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchType {
    F64,
    #[default]
    F32,
    I32,
    U8,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchFold {
    #[default]
    Sum,
    Max,
    Min,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    #[command(subcommand)]
    pub(crate) what: LaunchWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LaunchWhat {
    /// A Slurm batch file, with one task a device.
    #[command(after_help = "\
Examples:
  meshwright launch slurm bert --layout dp_mp --mesh r=4,c=8 --nodes 4 --per-node 8 -o bert.sbatch
  meshwright launch slurm bert --layout dp --mesh all=8 --nodes 2 --per-node 4 --partition gpu --module cuda/12.6 \\
      --memory 80GiB -- --steps 10000 --run /scratch/me/bert

What stands after `--` goes to `meshwright train` as it is. A plan that does not fit the nodes is refused.")]
    Slurm(LaunchSlurmArgs),
    /// A Kubernetes MPIJob, for the MPI operator.
    #[command(after_help = "\
Examples:
  meshwright launch k8s bert --layout dp_mp --mesh r=4,c=8 --nodes 4 --per-node 8 --image registry.local/meshwright:1 \\
      --volume runs:/runs -o bert.yaml -- --steps 10000 --run /runs/bert
  kubectl apply -f bert.yaml

Models and layouts that are files must be in the image, or on a volume.")]
    K8s(LaunchK8sArgs),
}

impl LaunchWhat {
    pub(crate) fn common(&self) -> &LaunchCommon {
        match self {
            LaunchWhat::Slurm(a) => &a.common,
            LaunchWhat::K8s(a) => &a.common,
        }
    }

    /// The command that starts a file.
    pub(crate) fn start(&self, file: &std::path::Path) -> String {
        match self {
            LaunchWhat::Slurm(_) => format!("sbatch {}", file.display()),
            LaunchWhat::K8s(_) => format!("kubectl apply -f {}", file.display()),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct LaunchCommon {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Nodes.
    #[arg(long, value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) nodes: u32,
    /// GPUs of a node that are used, with one process each; with --cpu, processes of a node.
    #[arg(long, value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) per_node: u32,
    /// Memory of a GPU, such as 80GiB: a plan that needs more is refused.
    #[arg(long, value_name = "SIZE", help_heading = "Job", value_parser = crate::pick::size)]
    pub(crate) memory: Option<usize>,
    /// Train on CPUs.
    #[arg(long, help_heading = "Job")]
    pub(crate) cpu: bool,
    /// Cores of a process.
    #[arg(long, value_name = "N", help_heading = "Job")]
    pub(crate) cores: Option<u32>,
    /// Name of the job [default: the model's]
    #[arg(long, help_heading = "Job")]
    pub(crate) name: Option<String>,
    /// The command `meshwright` on the nodes.
    #[arg(long, value_name = "PATH", default_value = "meshwright", help_heading = "Job")]
    pub(crate) program: String,
    /// The network interface over which ranks find each other, such as ib0 (NCCL_SOCKET_IFNAME).
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    pub(crate) interface: Option<String>,
    /// The RDMA adapters for the data, such as mlx5 (NCCL_IB_HCA).
    #[arg(long, value_name = "NAMES", help_heading = "Job")]
    pub(crate) hca: Option<String>,
    /// The file; without it, standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write over a file that exists.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Further arguments of `meshwright train`.
    #[arg(last = true, value_name = "TRAIN ARGS", allow_hyphen_values = true)]
    pub(crate) train: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchSlurmArgs {
    #[command(flatten)]
    pub(crate) common: LaunchCommon,
    /// Time limit, as Slurm writes it.
    #[arg(long, default_value = "24:00:00", help_heading = "Slurm")]
    pub(crate) time: String,
    /// Partition.
    #[arg(long, help_heading = "Slurm")]
    pub(crate) partition: Option<String>,
    /// Account.
    #[arg(long, help_heading = "Slurm")]
    pub(crate) account: Option<String>,
    /// Quality of service.
    #[arg(long, help_heading = "Slurm")]
    pub(crate) qos: Option<String>,
    /// A module to load; may be repeated.
    #[arg(long = "module", value_name = "NAME", help_heading = "Slurm")]
    pub(crate) modules: Vec<String>,
    /// How srun starts MPI; `srun --mpi=list` shows what a cluster has.
    #[arg(long, default_value = "pmix", help_heading = "Slurm")]
    pub(crate) mpi: String,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchK8sArgs {
    #[command(flatten)]
    pub(crate) common: LaunchCommon,
    /// The container image, with meshwright, an MPI library and an SSH server.
    #[arg(long, help_heading = "Kubernetes")]
    pub(crate) image: String,
    /// Namespace.
    #[arg(long, help_heading = "Kubernetes")]
    pub(crate) namespace: Option<String>,
    /// A volume for data and runs, CLAIM:/path; may be repeated.
    #[arg(long = "volume", value_name = "CLAIM:/PATH", help_heading = "Kubernetes")]
    pub(crate) volumes: Vec<String>,
    /// The resource that stands for an RDMA adapter, such as rdma/hca.
    #[arg(long, value_name = "RESOURCE", help_heading = "Kubernetes")]
    pub(crate) rdma: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchModelArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Timed steps.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Steps before them.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) warmup: u32,
    /// Seed of the values and the data.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) threads: ThreadsArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
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
