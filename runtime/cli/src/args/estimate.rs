//! The options of `estimate`, and those of every command that takes a machine.

use super::{FormatArgs, ProjectArgs};
use crate::value_parsers::page;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A machine that need not be here.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine")]
pub(crate) struct MachineArgs {
    /// The machine whose times are estimated: a name that `meshwright machines` lists, or a file. Default: $MESHWRIGHT_MACHINE.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) machine: Option<String>,
    /// Change a number of the machine, such as tier.rail.rate=25e9; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub(crate) with: Vec<String>,
}

impl MachineArgs {
    /// The name or file of the machine, if one was given.
    pub(crate) fn name(&self) -> Option<String> {
        let from_environment = || std::env::var("MESHWRIGHT_MACHINE").ok().filter(|name| !name.is_empty());
        self.machine.clone().or_else(from_environment)
    }
}

/// The order of passes in a pipeline.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleName {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// One forward, one backward; with --chunks interleaved.
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// The same with gradients of weights in the bubble (ZB-H1).
    #[value(name = "zb_h1")]
    ZbH1,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright estimate gpt --preset small --dim batch=16 --precision bf16 --machine dgx-h200
  meshwright estimate bert --layout zero3 --mesh data=64 --machine dgx-h100 --precision bf16
  meshwright estimate gpt --preset gpt3_175b --precision bf16 --machine sakura-one --mesh data=6,model=8 --pipe 16 \\
    --layout 'batch -> data; heads, d_ff, vocab -> model; seq -> model when free; moments: * -> data; microbatches 256'
  meshwright estimate llama --preset 8b --layout zero3 --mesh data=8 --machine dgx-h100 --scale data=8..1024
  meshwright estimate llama --preset 8b --layout zero3 --mesh data=64 --machine dgx-h100 --with tier.rail.rate=25e9
  meshwright estimate mlp --layout dp --mesh 4 --machine cpu --against mlp.json

No device is used: the Plan is compiled and priced by the numbers of the machine file.")]
pub(crate) struct EstimateArgs {
    #[command(flatten)]
    pub(crate) project: ProjectArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// What executes the Plan: threads, mpi, cuda, or a file with facts about another system. Default: threads on a CPU, cuda on
    /// a GPU.
    #[arg(long, value_name = "threads|mpi|cuda|FILE", help_heading = "Machine")]
    pub(crate) engine: Option<String>,
    /// Number of stages of a pipeline over the loop of layers, as the outermost mesh axis.
    #[arg(long, value_name = "STAGES", help_heading = "Pipeline", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pipe: Option<u32>,
    /// The order of passes.
    #[arg(long, value_enum, default_value = "1f1b", requires = "pipe", help_heading = "Pipeline")]
    pub(crate) schedule: ScheduleName,
    /// Stages of each device (interleaved).
    #[arg(long, value_name = "N", default_value_t = 1, requires = "pipe", help_heading = "Pipeline", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: u32,
    /// With 1, embedding and logits count as a layer each where layers are divided among stages.
    #[arg(long, value_name = "0|1", default_value_t = 0, requires = "pipe", help_heading = "Pipeline", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) ends: u8,
    /// The rate of one slow device relative to the others, such as 0.8: all wait for it.
    #[arg(long, value_name = "RATE", help_heading = "What if")]
    pub(crate) slow: Option<f64>,
    /// Also the share of time that makes progress between failures and checkpoints (Young 1974, Daly 2006).
    #[arg(long, help_heading = "What if")]
    pub(crate) failures: bool,
    /// A row for each size of a mesh axis, doubling: data=8..1024.
    #[arg(long, value_name = "AXIS=FROM..TO", help_heading = "What if")]
    pub(crate) scale: Option<String>,
    /// With --scale, examples grow with the axis.
    #[arg(long, requires = "scale", help_heading = "What if")]
    pub(crate) weak: bool,
    /// Write the estimated timeline of a device in the format of a run's trace, for Perfetto.
    #[arg(long, value_name = "FILE", conflicts_with = "scale", help_heading = "Output")]
    pub(crate) trace: Option<PathBuf>,
    /// Write a page of the plan: its steps, its memory, and the estimated timeline of a device.
    #[arg(long, value_name = "FILE.html|DIR/", value_parser = page(), conflicts_with_all = ["scale", "against"], help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// What was measured, beside the estimate: a timeline that `--trace` of a run has written, or the folder of a run.
    #[arg(long, value_name = "RUN|TRACE", conflicts_with_all = ["pipe", "scale", "trace", "failures", "slow"], help_heading = "Output")]
    pub(crate) against: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
