//! The options of `ckpt`.

use super::FormatArgs;
use crate::value_parsers;
use clap::{Args, Subcommand};
use meshwright_runs::checkpoint::Which;
use std::path::PathBuf;

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
    /// Write a checkpoint to one .safetensors file, which `eval`, `predict` and `train --init` read, and other programs too.
    #[command(after_help = "\
Examples:
  meshwright ckpt export runs/mnist_mlp-1 -o mnist.safetensors --params-only
  meshwright ckpt export runs/mnist_mlp-1 -o best.safetensors --from best")]
    Export(CkptExportArgs),
    /// Compare two checkpoints tensor by tensor.
    #[command(after_help = "\
Examples:
  meshwright ckpt diff runs/a runs/b
  meshwright ckpt diff runs/a@200 runs/a@best --params-only
  meshwright ckpt diff --exit-code mine.safetensors theirs.safetensors")]
    Diff(CkptDiffArgs),
    /// Give the tensors in all checkpoints of a run other names, moments with their parameters: of a rule `NEW = OLD` the new
    /// name comes first.
    #[command(after_help = "\
Examples:
  meshwright ckpt rename runs/a 'encoder.* = enc.*'
  meshwright ckpt rename runs/a 'head.w = out.w; head.b = out.b'")]
    Rename(CkptRenameArgs),
    /// Write manifests that are missing, for tensors that are whole.
    #[command(after_help = "Example:\n  meshwright ckpt repair runs/mnist_mlp-1")]
    Repair(CkptListArgs),
}

impl CkptWhat {
    pub(crate) fn format(&self) -> &FormatArgs {
        match self {
            CkptWhat::List(a) | CkptWhat::Repair(a) => &a.format,
            CkptWhat::Export(a) => &a.format,
            CkptWhat::Diff(a) => &a.format,
            CkptWhat::Rename(a) => &a.format,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct CkptListArgs {
    /// The folder of the run.
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CkptExportArgs {
    /// The folder of a run, or one checkpoint file.
    #[arg(value_name = "RUN|FILE")]
    pub(crate) subject: PathBuf,
    /// The file to write; one that is there is replaced.
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub(crate) output: PathBuf,
    /// Only parameters and states, without the optimizer's moments and without averages.
    #[arg(long)]
    pub(crate) params_only: bool,
    /// Only parameters and states, and the moving average (`ema`) of each parameter that has one in its place.
    #[arg(long, conflicts_with = "params_only")]
    pub(crate) averages: bool,
    /// The checkpoint of this step, or the `best`, instead of the newest.
    #[arg(long, value_name = "STEP|best", value_parser = value_parsers::which)]
    pub(crate) from: Option<Which>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CkptDiffArgs {
    /// The first: the folder of a run, with the newest checkpoint or with that of a step or the best (`RUN@200`, `RUN@best`), or
    /// a checkpoint file.
    #[arg(value_name = "A")]
    pub(crate) a: String,
    /// The second.
    #[arg(value_name = "B")]
    pub(crate) b: String,
    /// Only parameters and states.
    #[arg(long)]
    pub(crate) params_only: bool,
    /// End with exit code 1 if they differ.
    #[arg(long)]
    pub(crate) exit_code: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CkptRenameArgs {
    /// The folder of the run.
    pub(crate) run: PathBuf,
    /// Rules `NEW = OLD`, separated by semicolons, or a file of them; `*` stands for the same text on both sides.
    #[arg(value_name = "RULES|FILE", required = true)]
    pub(crate) rules: Vec<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
