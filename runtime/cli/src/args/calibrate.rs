//! The options of `calibrate`.

use super::{DeviceChoice, FormatArgs};
use crate::value_parsers;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright calibrate
  meshwright calibrate --mesh r=2,c=2 --minutes 5 --name 'my laptop' --output laptop.machine.toml
  meshwright calibrate --check laptop.machine.toml
  mpirun -n 4 meshwright calibrate --mesh all=4 --output ranks.machine.toml
  meshwright calibrate --device cuda --output gpus.machine.toml
  meshwright estimate mlp --layout dp --mesh 4 --machine laptop.machine.toml

Devices are threads of this process, or GPUs, or of processes that a launcher started. Kernels, collectives and whole training steps are timed, and the
numbers of a machine file are set so that estimates give these times; plans of shipped models say how far estimates are off. Nothing else
should run meanwhile.")]
pub(crate) struct CalibrateArgs {
    /// What to measure.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
    /// The mesh on which plans run, and whose groups communicate [default: all=4, or all processes, or all GPUs of this host]
    #[arg(long, value_name = "AXES")]
    pub(crate) mesh: Option<String>,
    /// About how long it may take; at least some twenty seconds.
    #[arg(long, value_name = "MINUTES", default_value = "3", value_parser = value_parsers::minutes)]
    pub(crate) minutes: f64,
    /// Name of the machine [default: its cores]
    #[arg(long, value_name = "NAME", conflicts_with = "check", value_parser = value_parsers::line)]
    pub(crate) name: Option<String>,
    /// The machine file to write. An older one is replaced if it was calibrated.
    #[arg(long, value_name = "FILE", default_value = "calibrated.machine.toml", conflicts_with = "check")]
    pub(crate) output: PathBuf,
    /// Write nothing, and say how far estimates with this machine are off here.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) check: Option<String>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
