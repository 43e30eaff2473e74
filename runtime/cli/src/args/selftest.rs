//! The options of `selftest`.

use super::FormatArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    #[command(subcommand)]
    pub(crate) what: Selftest,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Selftest {
    /// Compare estimates with published runs.
    Foresight(ForesightArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright selftest foresight
  meshwright selftest foresight --runs mine.toml --format json

Ends with 1 where estimates are off by more than 10 % in the mean or 20 % at most, or a run that exists is said not to fit.")]
pub(crate) struct ForesightArgs {
    /// A file of published runs; may be repeated. Default: those that ship.
    #[arg(long, value_name = "FILE")]
    pub(crate) runs: Vec<PathBuf>,
    /// Change a number of every machine, such as device.sustained=0.8; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub(crate) with: Vec<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
