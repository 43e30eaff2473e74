//! The options of `predict`.

use super::{CheckpointArgs, FormatArgs};
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright predict runs/digits-1 --limit 10
  meshwright predict runs/digits-1 --output class --format json
  meshwright predict runs/digits-1 --data image=new.npy -o classes.npy
  meshwright predict runs/digits-1 --value b1.attention.out -o out.safetensors
  meshwright predict digits.mw --checkpoint digits.safetensors

A model declares its outputs: output class = argmax[classes](logits). Only the inputs that they read need data.

With --format json, the first line describes the outputs: name, dtype, and dims in the order of the nested lists. NaN and
infinities are the strings \"NaN\", \"Infinity\" and \"-Infinity\".")]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) what: CheckpointArgs,
    /// An `output` of the model; may be repeated [default: all]
    #[arg(long = "output", value_name = "NAME")]
    pub(crate) outputs: Vec<String>,
    /// Any other value of the model, by its name or path: logits, b1.attention.out; may be repeated.
    #[arg(long = "value", value_name = "NAME")]
    pub(crate) values: Vec<String>,
    /// Only the first N examples; of outputs that read no input, just so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Seed of random values: those of an example depend on it and on the example's number alone [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Write the outputs, rather than print them: one to a .npy file, any to a .npz or .safetensors file, or each to a .npy file
    /// in a folder.
    #[arg(short = 'o', long = "to", value_name = "FILE|DIR")]
    pub(crate) to: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
