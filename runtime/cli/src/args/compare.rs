//! The options of `compare`.

use super::{CoresArgs, DevicesArgs, MachineArgs, MemoryArgs, PagerArgs, ProgramArgs, SettingArgs};
use crate::complete;
use crate::value_parsers;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

/// How a comparison is written.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TableFormat {
    /// For people.
    #[default]
    Text,
    /// Comma-separated values: one row for each variant, or with --only diff for each difference.
    Csv,
    /// Tables of Markdown.
    Markdown,
    /// One JSON object with everything.
    Json,
}

/// A part of a comparison.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparePart {
    /// What each variant costs.
    Totals,
    /// Which collectives appear, vanish or have another size, value by value.
    Diff,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright compare mlp --mesh 4 --layout dp --layout zero3
  meshwright compare mnist_mlp --layout 'batch -> r' --layout 'batch -> r; hidden1 -> c' --mesh r=2,c=2
  meshwright compare mlp --layout dp --mesh 2,4 --dim batch=100,200 --format csv
  meshwright compare mlp --layout dp --layout tp --mesh 2 --measure
  meshwright compare gpt --layout dp --layout zero3 --mesh 8 --memory 80GiB
  meshwright compare gpt --preset small --layout dp,zero3 --mesh 8,64 --machine dgx-h100
  meshwright compare mlp --layout dp --layout zero3 --mesh 4 --only diff --format markdown

The model is read once. Each layout is compiled for each mesh and each choice of sizes, and compared with the first.
In the differences, + is a collective that appears, - one that vanishes, ~ one that moves more or less.")]
pub(crate) struct CompareArgs {
    /// The model: a file, or the name of a model that ships (see `meshwright models`).
    #[arg(add = ArgValueCompleter::new(complete::models))]
    pub(crate) model: String,
    /// Layouts: dp,tp for names of layouts that ship and files; a text with rules, such as 'batch -> r; hidden -> c', is one
    /// layout. May be repeated.
    #[arg(long = "layout", value_name = "FILE|NAME|RULES", add = ArgValueCompleter::new(complete::layouts), help_heading = "Variants")]
    pub(crate) layouts: Vec<String>,
    /// Meshes, which override those of the layouts: 4,2x2 for meshes that are sizes alone; with names, r=2,c=2 is one mesh. May
    /// be repeated.
    #[arg(long = "mesh", value_name = "AXES", help_heading = "Variants")]
    pub(crate) meshes: Vec<String>,
    /// Sizes of a dim; may be repeated for other dims.
    #[arg(long = "dim", value_name = "NAME=SIZE,…", value_parser = value_parsers::dim_sizes, add = ArgValueCompleter::new(complete::dims), help_heading = "Variants")]
    pub(crate) dims: Vec<(String, Vec<usize>)>,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Also time training steps of each variant, with data in memory, as `bench model` does.
    #[arg(long, help_heading = "Measuring")]
    pub(crate) measure: bool,
    /// Timed steps.
    #[arg(long, value_name = "N", default_value_t = 40, requires = "measure", help_heading = "Measuring", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Untimed steps before them.
    #[arg(long, value_name = "N", default_value_t = 10, requires = "measure", help_heading = "Measuring")]
    pub(crate) warmup: u32,
    #[command(flatten)]
    pub(crate) cores: CoresArgs,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
    /// Format of the report.
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(crate) format: TableFormat,
    /// Only this part [default: both; totals with --format csv]
    #[arg(long, value_enum, help_heading = "Output")]
    pub(crate) only: Option<ComparePart>,
    #[command(flatten)]
    pub(crate) pager: PagerArgs,
}
