//! The options of `bench`.

use super::{CoresArgs, DevicesArgs, Format, FormatArgs, ProjectArgs, TraceArgs};
use crate::value_parsers;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use meshwright_comm::BusFactor;
use meshwright_exec::KernelsBy;

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchWhat {
    /// Benchmark whole training steps of a model.
    #[command(after_help = "\
Examples:
  meshwright bench model mlp --steps 40
  meshwright bench model mlp --layout dp_tp --dim batch=1000 --format json")]
    Model(BenchModelArgs),
    /// Benchmark collectives by size, and check every element of their results.
    #[command(after_help = collectives_help())]
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

/// Examples, and how the figures are defined: for each collective what it must move.
fn collectives_help() -> String {
    // Those of one factor together, in the order of the first of each.
    let mut factors: Vec<(BusFactor, Vec<&str>)> = vec![];
    for kind in meshwright_comm::bench::kinds() {
        match factors.iter_mut().find(|f| f.0 == kind.bus_factor()) {
            Some((_, names)) => names.push(kind.name()),
            None => factors.push((kind.bus_factor(), vec![kind.name()])),
        }
    }
    let factors: Vec<String> =
        factors.iter().map(|(f, names)| format!("{f} ({})", names.join(", "))).collect();
    format!(
        "\
Examples:
  meshwright bench collectives
  meshwright bench collectives --op all --devices 8 --max 1MiB
  meshwright bench collectives --mesh r=2,c=2 --op all_reduce,all_gather --dtype f64 --format json
  meshwright bench collectives --mesh r=2,c=4 --over c

Figures are defined as in nccl-tests. The time of a call is that of its slowest device; `time` is the median of the calls and
`least` the minimum. The size is that of the larger of a device's two buffers. algbw is size / time; busbw is algbw times the
bytes that must be moved per byte, for n devices: {}.
A GB/s is 10^9 bytes per second. The exit code is 1 if an element is wrong.",
        factors.join(", ")
    )
}

#[derive(Args, Debug)]
pub(crate) struct BenchCollectivesArgs {
    /// The mesh, such as all=4; its devices form one group, unless --over says otherwise.
    #[arg(long, value_name = "AXES", conflicts_with = "devices")]
    pub(crate) mesh: Option<String>,
    /// Axes of the mesh along which devices form groups, separated by commas. All groups call side by side, as in a step.
    #[arg(long, value_name = "AXES", value_delimiter = ',', requires = "mesh")]
    pub(crate) over: Vec<String>,
    /// Number of devices [default: the number of processes, or 4 threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) devices: Option<u32>,
    /// How devices communicate [default: mpi if a launcher started several processes, else threads]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<BenchTransport>,
    /// Which collectives, separated by commas.
    #[arg(long = "op", value_name = "OP", value_delimiter = ',', default_value = "all_reduce", value_parser = op_names())]
    pub(crate) ops: Vec<String>,
    /// Smallest size, such as 4KiB, 64_000 or 1MB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = value_parsers::size)]
    pub(crate) min: usize,
    /// Largest size.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = value_parsers::size)]
    pub(crate) max: usize,
    /// Factor from each size to the next.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: u32,
    /// Dtype of the elements.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: BenchType,
    /// Reduction, of the collectives that reduce.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) redop: BenchFold,
    /// Timed calls of each size [default: enough to move 1 GiB, between 20 and 2000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iters: Option<u32>,
    /// Untimed calls before them.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) warmup: u32,
    /// Calls after them whose results are checked; 0 for none.
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
    /// Devices are GPUs, with buffers in their memory: the first GPUs of this machine, or one for each process if `mpirun` or
    /// `srun` started several.
    Nccl,
}

/// What stands for all collectives.
pub(crate) const ALL_OPS: &str = "all";

fn op_names() -> PossibleValuesParser {
    let names = meshwright_comm::bench::kinds().map(|kind| kind.name());
    PossibleValuesParser::new(names.chain([ALL_OPS]))
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchType {
    F64,
    #[default]
    F32,
    Bf16,
    F16,
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
pub(crate) struct BenchModelArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    /// Timed steps.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Untimed steps before them.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) warmup: u32,
    /// Seed of the values and the data.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) cores: CoresArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// What the kernels of a GPU are counted under.
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(crate) by: By,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    /// Their names.
    #[default]
    Kernel,
    /// The value of the model that they compute, with its line.
    Line,
    /// The launches that `explain --emit device` prints, by their numbers.
    Launch,
}

impl By {
    pub(crate) const fn kernels(self) -> KernelsBy {
        match self {
            By::Kernel => KernelsBy::Kernel,
            By::Line => KernelsBy::Line,
            By::Launch => KernelsBy::Launch,
        }
    }
}
