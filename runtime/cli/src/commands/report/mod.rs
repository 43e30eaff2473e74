//! `report`: a page of runs, written or served.

mod access;
mod live_page;
mod serving;

use crate::args::PageArgs;
use crate::output::console::Console;
use crate::output::text::{bytes, counted};
use crate::replace::{writable, write};
use crate::run_places::{FoundRuns, ReadRuns, places, read, root};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources, has_errors};
use meshwright_report::report::RunsReport;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The page where none is named.
const PAGE: &str = "report.html";

/// Runs the command.
pub(crate) fn run(args: &PageArgs, console: &mut Console) -> Result<(), Stop> {
    let title = args.title.clone().unwrap_or_else(|| title_of(&args.runs));
    if args.live {
        let host = args.host.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let at = SocketAddr::new(host, args.port.unwrap_or(0));
        return live_page::serve(&args.runs, &title, at, console).map_err(|e| e.said(console));
    }
    let page = args.output.clone().unwrap_or_else(|| PAGE.into());
    let places = writable(&page).and_then(|()| places(&args.runs)).map_err(|d| said(&d, console))?;
    let found = read(&places, root(&args.runs), &mut ReadRuns::default());
    page_of(&found, &title, &page, console)
}

/// Says what ends the command.
pub(crate) fn said(d: &Diagnostic, console: &mut Console) -> Stop {
    console.diagnostics(std::slice::from_ref(d), &Sources::new());
    Stop::Diagnosed
}

/// The names of some folders.
pub(crate) fn title_of(paths: &[PathBuf]) -> String {
    let name = |p: &PathBuf| {
        let full = p.canonicalize().unwrap_or_else(|_| p.clone());
        full.file_name().map_or_else(|| p.display().to_string(), |n| n.to_string_lossy().into_owned())
    };
    let mut names: Vec<String> = paths.iter().take(3).map(name).collect();
    if paths.len() > names.len() {
        names.push(format!("{} more", paths.len() - names.len()));
    }
    names.join(", ")
}

/// Writes the page of some runs. Those that cannot be read are left out, and the command fails.
pub(crate) fn page_of(
    found: &FoundRuns,
    title: &str,
    page: &Path,
    console: &mut Console,
) -> Result<(), Stop> {
    let made = format!("Made at {}.", meshwright_runs::clock::now());
    let unreadable = found.left_out();
    let report = RunsReport { title, made: &made, runs: &found.runs, unreadable: &unreadable };
    let text = report.page(report.data());
    write(page, text.as_bytes()).map_err(|d| said(&d, console))?;
    console.note(&format!(
        "`{}` shows {} in {}",
        page.display(),
        counted(found.runs.len() as u64, "run"),
        bytes(text.len() as u64)
    ));
    console.diagnostics(&found.unreadable, &Sources::new());
    if has_errors(&found.unreadable) { Err(Stop::Diagnosed) } else { Ok(()) }
}
