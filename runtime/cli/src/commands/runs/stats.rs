//! `runs stats`: what many runs took, and how they ended.

use super::listing::{Listing, listing};
use crate::args::{ResultFormat, RunsStatsArgs};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::table::{Align, Screen, Table};
use crate::output::text::{counted, duration, percent, thousands};
use crate::replace::{writable, write};
use crate::results::{TableView, deliver, fits};
use anstyle::Style;
use meshwright_report::results::RunRow;
use meshwright_report::usage::{UsageGroup, UsedRun, by_end, by_model, in_all, page, table};
use meshwright_runs::RunUsage;
use std::path::PathBuf;

/// What nobody noted.
const UNKNOWN: &str = "n/a";

/// Runs the command.
pub(super) fn stats(args: &RunsStatsArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let output = args.output.as_deref();
    fits(args.format, output)?;
    args.html.as_deref().map_or(Ok(()), writable)?;
    let listing = listing(&args.found, console)?;
    let title = format!("Usage of {}", listing.counted());
    let all = used(listing, console);
    if let Some(path) = &args.html {
        write(path, page(&all, &title).as_bytes())?;
        console.note(&format!("wrote {}", path.display()));
    }
    if args.format != ResultFormat::Text {
        return deliver(&table(&all), TableView::List, (args.format, output), console);
    }
    let screen = if output.is_some() { Screen::default() } else { *console.screen() };
    let text = summary(&all, &screen);
    match output {
        Some(path) => Ok(write(path, text.as_bytes())?),
        None => Ok(console.out_styled(&text)?),
    }
}

/// What each run took. One whose log cannot be read is said and left out.
fn used(listing: Listing, console: &mut Console) -> Vec<UsedRun> {
    // One without a folder took nothing that anybody noted.
    let path = |r: &RunRow| r.summary.as_ref().map(|s| s.path.clone());
    let paths: Vec<PathBuf> = listing.rows.iter().filter_map(path).collect();
    let mut read = RunUsage::read_all(&paths).into_iter();
    let mut all = Vec::new();
    for row in listing.rows {
        let of_folder = row.summary.as_ref().and_then(|_| read.next());
        let usage = of_folder.unwrap_or_else(|| Ok(RunUsage::default()));
        match usage {
            Ok(usage) => all.push(UsedRun { row, usage }),
            Err(d) => console.warn(&format!("`{}` is left out: {}", row.name, d.message)),
        }
    }
    all
}

fn known(share: Option<f64>) -> String {
    share.map_or(UNKNOWN.into(), percent)
}

fn summary(all: &[UsedRun], screen: &Screen) -> String {
    let total = in_all(all);
    if total.runs == 0 {
        return "0 runs\n".into();
    }
    let share = |n: usize| percent(n as f64 / total.runs as f64);
    let mut out =
        format!("{}, {} ended by an error\n", counted(total.runs as u64, "run"), share(total.failed));
    let mut ends =
        Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]).style(0, Style::new().bold());
    ends.titles(["how they ended", "runs", "share", "device hours"]);
    for g in by_end(all) {
        ends.row([g.name, thousands(g.runs as u64), share(g.runs), hours(g.device_hours)]);
    }
    out += &format!("\n{}", ends.render_on(screen));
    let mut align = vec![Align::Right; 9];
    align[0] = Align::Left;
    let mut models = Table::new(&align).style(0, Style::new().bold()).dispensable(&[8, 3, 7]);
    models.titles([
        "model",
        "runs",
        "failed",
        "devices",
        "wall time",
        "in queues",
        "device hours",
        "waiting",
        "utilization",
    ]);
    for g in by_model(all).into_iter().chain([total]) {
        models.row(row(&g));
    }
    out + &format!("\n{}", models.render_on(screen))
}

fn hours(v: f64) -> String {
    if v < 0.01 { format!("{v:.1e}") } else { format!("{v:.2}") }
}

fn row(g: &UsageGroup) -> [String; 9] {
    let devices: Vec<String> = g.devices.iter().map(u64::to_string).collect();
    [
        g.name.clone(),
        thousands(g.runs as u64),
        thousands(g.failed as u64),
        devices.join(", "),
        duration(g.wall_seconds),
        g.queue_seconds.map_or(UNKNOWN.into(), duration),
        hours(g.device_hours),
        known(g.waiting),
        known(g.mfu),
    ]
}
