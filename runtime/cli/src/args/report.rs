//! The options of `report`.

use crate::value_parsers::page;
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meshwright report runs/study
  meshwright report runs/mlp-1 runs/mlp-2 --output compared.html --title 'Two learning rates'
  meshwright report runs/study --live
  meshwright report runs --live --port 8080
  meshwright report runs/a runs/b --live --host 0.0.0.0 --port 8080
  meshwright report runs --output site/

The page is one file that loads nothing: it can be sent, archived and opened without a network. Of a folder, as a web server takes
it, it is index.html. With --live it is served, follows what runs write, says which of them are running, and ends with Ctrl-C: on
this machine alone, or with --host to whoever has the access token in the address that it prints. That is HTTP, which others on the
network can read: where that matters, leave --host out and forward the port with ssh -L.")]
pub(crate) struct PageArgs {
    /// Folders of runs or sweeps, or folders that hold some, however deep.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// The page to write; one that is there is replaced [default: report.html]
    #[arg(long, short, value_name = "FILE.html|DIR/", value_parser = page(), conflicts_with = "live")]
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
    /// The address to listen at; beyond this machine only those are answered who have the access token [default: 127.0.0.1]
    #[arg(long, value_name = "IP", requires = "live")]
    pub(crate) host: Option<IpAddr>,
}
