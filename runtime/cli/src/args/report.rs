//! The options of `report`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright report runs/study
  meshwright report runs/mlp-1 runs/mlp-2 --output compared.html --title 'Two learning rates'
  meshwright report runs/study --live
  meshwright report runs --live --port 8080

The page is one file that loads nothing: it can be sent, archived and opened without a network. With --live it is served on this
machine alone, follows what runs write, and ends with Ctrl-C.")]
pub(crate) struct PageArgs {
    /// Folders of runs or sweeps, or folders that hold some, however deep.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The page to write; one that is there is replaced [default: report.html]
    #[arg(long, short, value_name = "FILE.html", conflicts_with = "live")]
    pub(crate) output: Option<PathBuf>,
    /// Its title [default: the names of the folders]
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// Serve the page at an address of this machine, and have it follow runs that go on.
    #[arg(long)]
    pub(crate) live: bool,
    /// The port to serve it on; 0 takes any that is free [default: 0]
    #[arg(long, value_name = "N", requires = "live")]
    pub(crate) port: Option<u16>,
}
