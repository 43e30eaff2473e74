//! `selftest foresight`: estimates beside published runs.

use crate::args::{ForesightArgs, Selftest, SelftestArgs};
use crate::commands::model::estimate::note_unread;
use crate::output::console::Console;
use crate::output::table::{Align, Table};
use crate::output::text::{percent, short_seconds as seconds};
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::Failure;
use meshwright_train::estimates::foresight::{
    ForesightRow, ForesightSummary, SHIPPED_RUNS, read_runs, rows, summary,
};

/// Greatest mean of the errors, and greatest error.
const LIMITS: (f64, f64) = (0.10, 0.20);

/// Runs the command.
pub(crate) fn run(args: &SelftestArgs, console: &mut Console) -> Result<(), Stop> {
    match &args.what {
        Selftest::Foresight(args) => foresight(args, console),
    }
}

fn foresight(args: &ForesightArgs, console: &mut Console) -> Result<(), Stop> {
    let mut texts: Vec<(String, String)> = vec![];
    for path in &args.runs {
        let text = std::fs::read_to_string(path).map_err(|e| {
            let found =
                Diagnostic::error(codes::E0531, format!("cannot read the runs file {}: {e}", path.display()));
            console.failed(Failure::Diagnostics(vec![found]), &Sources::new())
        })?;
        texts.push((path.display().to_string(), text));
    }
    if texts.is_empty() {
        texts = SHIPPED_RUNS.iter().map(|(name, text)| ((*name).to_string(), (*text).to_string())).collect();
    }
    let mut all: Vec<(String, Vec<ForesightRow>)> = vec![];
    for (path, text) in &texts {
        let file = read_runs(path, text);
        for (name, facts) in file.iter().flat_map(|file| &file.engine) {
            note_unread(&format!("{path}: engine `{name}`"), facts, console);
        }
        let found = file.and_then(|file| rows(path, &file, &args.with));
        let found = found.map_err(|e| console.failed(Failure::Diagnostics(vec![*e]), &Sources::new()))?;
        all.push((path.clone(), found));
    }
    let rows: Vec<ForesightRow> = all.iter().flat_map(|(_, rows)| rows.iter().cloned()).collect();
    let whole = summary(&rows);
    let failed = whole.mean > LIMITS.0 || whole.max > LIMITS.1 || whole.refused > 0;
    if console.json() {
        let files: Vec<_> = all
            .iter()
            .map(|(path, rows)| serde_json::json!({ "file": path, "summary": summary(rows), "rows": rows }))
            .collect();
        console.out_json(
            &serde_json::json!({ "version": 1, "ok": !failed, "summary": whole, "files": files }),
        )?;
    } else {
        let text: String = all.iter().map(|(path, rows)| table(path, rows)).collect();
        let verdict = if failed {
            "beyond the limits: 10 % in the mean, 20 % at most, no refusal"
        } else {
            "within the limits"
        };
        let of = if all.len() > 1 { format!("all: {}\n", errors(&whole)) } else { String::new() };
        console.out(&format!("{text}{of}{verdict}\n"))?;
    }
    if failed { Err(Stop::Diagnosed) } else { Ok(()) }
}

fn errors(s: &ForesightSummary) -> String {
    let tau = s.tau.map_or(String::new(), |t| format!(", tau {t:.2}"));
    format!(
        "{} rows, mean {}, max {}, bias {:+.1} %, false refusals {}{tau}",
        s.rows,
        percent(s.mean),
        percent(s.max),
        100.0 * s.bias,
        s.refused
    )
}

fn table(path: &str, rows: &[ForesightRow]) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[left, right, right, right, right, right, left]);
    table.titles(["run", "published", "estimated", "error", "GiB", "estimated", ""]);
    for r in rows {
        let gib = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.1}"));
        let mut notes = r.chosen.clone();
        notes.extend(r.assumed_rates.iter().map(|a| format!("no rate of `{}` products", a.dtype)));
        if r.refused {
            notes.push("said not to fit".into());
        }
        table.row([
            r.id.clone(),
            seconds(r.seconds),
            seconds(r.estimated),
            format!("{:+.1} %", 100.0 * r.error),
            gib(r.memory_gib),
            gib(r.estimated_gib),
            notes.join("; "),
        ]);
    }
    format!("{path}\n{}  {}\n\n", table.render(), errors(&summary(rows)))
}
