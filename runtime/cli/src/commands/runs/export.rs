//! `runs export`: the events of runs in one table.

use super::run_choice::all_chosen;
use crate::args::RunsExportArgs;
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::text::counted;
use crate::replace::unwritten;
use crate::results::TableWriter;
use crate::stop::Stop;
use meshwright_files::{Checked, ReplacingFile};
use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable};
use meshwright_runs::LogEvent;
use meshwright_sorted::SortedMap;
use serde_json::Value;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// The columns that every event may have, before the others.
const FIRST: [(&str, ColumnKind); 5] = [
    ("run", ColumnKind::Text),
    ("event", ColumnKind::Text),
    ("step", ColumnKind::Count),
    ("epoch", ColumnKind::Count),
    ("set", ColumnKind::Text),
];

/// Runs the command.
pub(super) fn export(args: &RunsExportArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let path = &args.output;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let writer: fn(_, &[Column]) -> _ = match extension {
        "csv" => TableWriter::csv,
        "jsonl" => TableWriter::jsonl,
        "parquet" => TableWriter::parquet,
        other => {
            let said = if other.is_empty() { "none".into() } else { format!("`.{other}`") };
            let text = format!("`--output` needs the extension .csv, .jsonl or .parquet, and has {said}");
            return Err(Stop::Usage(text).into());
        }
    };
    let runs = all_chosen(&args.runs)?;
    let columns = columns(&runs)?;
    // Under its name there is always the old or the new file.
    let failed = |why: &dyn std::fmt::Display| unwritten(path, why);
    let new = ReplacingFile::beside(path).map_err(|e| failed(&e))?;
    let into = BufWriter::new(new.file().try_clone().map_err(|e| failed(&e))?);
    let mut out = writer(into, &columns).map_err(|e| failed(&e))?;
    let mut events = 0;
    for run in &runs {
        events += rows(run, &columns, |table| out.write(table).map_err(|e| failed(&e)))?;
    }
    out.finish().map_err(|e| failed(&e))?;
    new.replace_durably().map_err(|e| failed(&e))?;
    let (n, of) = (counted(events as u64, "event"), counted(runs.len() as u64, "run"));
    Ok(console.out(&format!("wrote {n} of {of} to {}\n", path.display()))?)
}

/// The columns of all events, with a kind that fits all values of each.
fn columns(runs: &[PathBuf]) -> Checked<Vec<Column>> {
    let mut kinds: SortedMap<String, ColumnKind> = SortedMap::new();
    let mut widen = |e: LogEvent| {
        for (name, value) in e.fields {
            let kind = match &value {
                Value::String(_) if name == "time" => ColumnKind::Time,
                Value::String(_) => ColumnKind::Text,
                v if v.is_u64() => ColumnKind::Count,
                Value::Null | Value::Number(_) => ColumnKind::Number,
                // Later versions may log lists.
                _ => ColumnKind::Text,
            };
            let wider = match (kinds.get(&name), kind) {
                (None | Some(ColumnKind::Time), ColumnKind::Time) => ColumnKind::Time,
                (Some(ColumnKind::Text | ColumnKind::Time), _) | (_, ColumnKind::Text | ColumnKind::Time) => {
                    ColumnKind::Text
                }
                (Some(ColumnKind::Number), _) | (_, ColumnKind::Number) => ColumnKind::Number,
                _ => ColumnKind::Count,
            };
            kinds.insert(name, wider);
        }
        Ok(())
    };
    runs.iter().try_for_each(|run| LogEvent::each(run, &mut widen))?;
    let first = FIRST.iter().map(|(name, kind)| Column::new(*name, *kind));
    let rest = kinds.into_iter().filter(|(name, _)| FIRST.iter().all(|f| f.0 != name));
    Ok(first.chain(rest.map(|(name, kind)| Column::new(name, kind))).collect())
}

/// Rows that are in memory at once: a log may be larger than that.
const ROWS: usize = 1 << 14;

/// Hands out the events of a run, some rows at a time; how many there are.
fn rows(run: &Path, columns: &[Column], mut take: impl FnMut(&ResultTable) -> Checked<()>) -> Checked<usize> {
    let name = run.display().to_string();
    let row = |e: &LogEvent| -> Vec<Cell> {
        columns
            .iter()
            .map(|c| match c.name.as_str() {
                "run" => Cell::Text(name.clone()),
                "event" => Cell::Text(e.event.clone()),
                "set" => e.set.clone().map_or(Cell::Missing, Cell::Text),
                field => cell(e.fields.get(field), c.kind),
            })
            .collect()
    };
    let mut some = ResultTable { columns: columns.to_vec(), rows: Vec::new() };
    let mut count = 0;
    LogEvent::each(run, |e| {
        some.rows.push(row(&e));
        count += 1;
        if some.rows.len() < ROWS {
            return Ok(());
        }
        take(&some)?;
        some.rows.clear();
        Ok(())
    })?;
    if !some.rows.is_empty() {
        take(&some)?;
    }
    Ok(count)
}

fn cell(value: Option<&Value>, kind: ColumnKind) -> Cell {
    match (value, kind) {
        (None, _) => Cell::Missing,
        // What JSON lacks: it was measured, and is no number.
        (Some(Value::Null), ColumnKind::Number) => Cell::Number(f64::NAN),
        (Some(Value::Null), _) => Cell::Missing,
        (Some(Value::String(text)), _) => Cell::Text(text.clone()),
        (Some(v), ColumnKind::Count) => v.as_u64().map_or(Cell::Missing, Cell::Count),
        (Some(v), ColumnKind::Number) => v.as_f64().map_or(Cell::Missing, Cell::Number),
        (Some(v), ColumnKind::Text | ColumnKind::Time) => Cell::Text(v.to_string()),
    }
}
