//! The options of `import` and `export`.

use super::{FormatArgs, Precision};
use crate::complete;
use crate::value_parsers;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use meshwright_runs::checkpoint::Which;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    pub(crate) what: ImportWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ImportWhat {
    /// Make a run of a Hugging Face checkpoint: its weights, its sizes and its tokenizer.
    Hf(ImportHfArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    pub(crate) what: ExportWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ExportWhat {
    /// Write a run as a Hugging Face checkpoint, which `from_pretrained` of transformers reads.
    Hf(ExportHfArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright import hf gpt2
  meshwright import hf gpt2 --model gpt --out runs/gpt2 --dim seq=256
  meshwright generate runs/gpt2 --prompt 'In the beginning'
  meshwright train gpt --init runs/gpt2 --data my_text

DIR holds config.json, model.safetensors (or several files with model.safetensors.index.json) and tokenizer.json. Weights in f16 and
bf16 become f32. `meshwright maps` lists what is known; a setting that the model does not have is an error.")]
pub(crate) struct ImportHfArgs {
    /// The folder of the checkpoint.
    pub(crate) dir: PathBuf,
    /// The model: a file, or the name of a model that ships [default: by the model_type of config.json]
    #[arg(long, add = ArgValueCompleter::new(complete::models))]
    pub(crate) model: Option<String>,
    /// The folder to write: that of a run, which `generate`, `eval`, `predict`, `ckpt`, `export` and `train --init` read
    /// [default: runs/MODEL-N with the next free N]
    #[arg(long, value_name = "RUN")]
    pub(crate) out: Option<PathBuf>,
    /// Which key is which dim, and which tensor which parameter: a map that ships, or a file [default: that of the model]
    #[arg(long, value_name = "NAME|FILE", add = ArgValueCompleter::new(complete::maps))]
    pub(crate) map: Option<String>,
    /// The size of a dim that config.json does not say, such as `seq` or `batch` [default: seq as of the model, batch 1]; may be
    /// repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = value_parsers::dim)]
    pub(crate) dims: Vec<(String, usize)>,
    /// A `const` of the model in place of what config.json says; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = value_parsers::set, allow_hyphen_values = true)]
    pub(crate) sets: Vec<(String, f64)>,
    /// Arithmetic type of what is computed with it [default: f32]
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright export hf runs/gpt-1 my_gpt
  meshwright export hf runs/gpt-1 my_gpt --from best --tokenizer tokenizer.json

In Python: transformers.AutoModelForCausalLM.from_pretrained('my_gpt'), and AutoTokenizer.from_pretrained('my_gpt'). More than 5 GB of
tensors are written to several files.")]
pub(crate) struct ExportHfArgs {
    /// The folder of the run.
    pub(crate) run: PathBuf,
    /// The folder to write, which must be new or empty.
    pub(crate) dir: PathBuf,
    /// The checkpoint of this step, or the `best`, instead of the newest.
    #[arg(long, visible_alias = "step", value_name = "STEP|best", value_parser = value_parsers::which)]
    pub(crate) from: Option<Which>,
    /// The moving average (`ema`) of each parameter that has one in its place.
    #[arg(long)]
    pub(crate) averages: bool,
    /// Which key is which dim, and which tensor which parameter: a map that ships, or a file [default: that of the model]
    #[arg(long, value_name = "NAME|FILE", add = ArgValueCompleter::new(complete::maps))]
    pub(crate) map: Option<String>,
    /// The tokenizer [default: the one imported with the run, or that of its data]
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// At most so many bytes of tensors in a file.
    #[arg(long, value_name = "BYTES", default_value_t = 5_000_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_shard_size: u64,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
