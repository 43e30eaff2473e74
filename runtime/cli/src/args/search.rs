//! The options of `search`.

use super::{CoresArgs, DevicesArgs, FormatArgs, MachineArgs, SettingArgs};
use crate::complete;
use crate::value_parsers;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use std::path::PathBuf;

/// In which orders axes come.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Orders {
    /// Those that split the batch are outermost.
    #[default]
    Usual,
    /// All orders.
    All,
}

/// Whether candidates may be pipelines.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PipesAsked {
    /// Stages, chunks and schedules are searched.
    Auto,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright search bert --devices 8 --machine dgx-h100 --dim batch=256
  meshwright search mnist_mlp --devices 4 --machine cpu --measure 3
  meshwright search gpt --preset tiny --devices 4 --machine cpu --layout 'batch -> data' --top 10
  meshwright search bert --devices 8 --machine dgx-h100 --write best.layout

No device is used, except by --measure: candidates are compiled and estimated, those with the lowest bounds first, until no bound is
below the best estimate. The answer is then proven; where the time is over before, the gap to the lowest bound is printed.")]
pub(crate) struct LayoutSearchArgs {
    /// The model: a file, or the name of a model that ships (see `meshwright models`).
    #[arg(add = ArgValueCompleter::new(complete::models))]
    pub(crate) model: String,
    /// Number of devices.
    #[arg(long, value_name = "N", help_heading = "Space", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) devices: u32,
    /// Lines that every candidate keeps: a file, the name of a layout that ships, or rules. Dims with a rule get no other; what
    /// the lines say of microbatches and recomputation holds for all.
    #[arg(long, value_name = "FILE|NAME|RULES", add = ArgValueCompleter::new(complete::layouts), help_heading = "Space")]
    pub(crate) layout: Option<String>,
    /// Names of the axes, the outermost first, and so their greatest number; by default at most 3, named by what they split.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Space")]
    pub(crate) axes: Vec<String>,
    /// In which orders axes come; the innermost have the fastest links.
    #[arg(long, value_enum, default_value_t, help_heading = "Space")]
    pub(crate) orders: Orders,
    /// Also search pipelines over the loop of layers: `auto` takes stages, chunks and schedules as they come.
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Space")]
    pub(crate) pipe: Option<PipesAsked>,
    /// A dim that candidates may gather although no rule implies it; may be repeated.
    #[arg(long, value_name = "DIM", help_heading = "Space")]
    pub(crate) gather: Vec<String>,
    /// Override the size of a dim; may be repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = value_parsers::dim, add = ArgValueCompleter::new(complete::dims), help_heading = "Model")]
    pub(crate) dims: Vec<(String, usize)>,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// How many candidates are shown.
    #[arg(long, value_name = "K", default_value_t = 5, help_heading = "Output", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,
    /// Show only candidates of which no other is as fast with less memory.
    #[arg(long, help_heading = "Output")]
    pub(crate) pareto: bool,
    /// Seconds after which the search ends and prints the gap.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, help_heading = "Space")]
    pub(crate) time_limit: f64,
    /// Also time training steps of the first K candidates on the devices here, in turns.
    #[arg(long, value_name = "K", help_heading = "Measuring", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) measure: Option<u16>,
    /// Timed steps of each candidate.
    #[arg(long, value_name = "N", default_value_t = 30, requires = "measure", help_heading = "Measuring", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Also time N candidates drawn evenly from the whole space (all, if it has no more), and compare them with the first:
    /// whether the search is right on this machine.
    #[arg(long, value_name = "N", requires = "measure", help_heading = "Measuring", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) sample: Option<u64>,
    /// Write the best candidate as a layout file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) write: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cores: CoresArgs,
    #[command(flatten)]
    pub(crate) device: DevicesArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
