//! The table of runs as text, CSV, JSON lines, Markdown and Parquet.

mod deliver;
mod parquet;
mod writer;

pub(crate) use deliver::{deliver, fits};
pub(crate) use writer::TableWriter;

use crate::args::ResultFormat;
use crate::output::table::{Align, Screen, Table, markdown_table};
use crate::output::text::{bytes, short_number, thousands};
use anstyle::Style;
use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable};

/// How a column is shown to people: its title, and its place among those that a narrow screen loses first.
struct Shown {
    name: &'static str,
    title: &'static str,
    /// The least is lost first; none is never lost.
    lost: Option<u8>,
}

const fn shown(name: &'static str, title: &'static str, lost: Option<u8>) -> Shown {
    Shown { name, title, lost }
}

const SHOWN: [Shown; 27] = [
    shown("run", "run", None),
    shown("started", "started", Some(13)),
    shown("model", "model", Some(19)),
    shown("state", "state", None),
    shown("layout", "layout", None),
    shown("mesh", "mesh", None),
    shown("devices", "devices", Some(5)),
    shown("steps", "steps", Some(8)),
    shown("step_ms_min", "min ms", Some(2)),
    shown("step_ms_median", "step ms", Some(20)),
    shown("step_ms_p90", "p90 ms", Some(3)),
    shown("estimated_ms", "estimated", Some(18)),
    shown("estimate_error", "+-", Some(15)),
    shown("exposed_ms", "exposed", Some(16)),
    shown("estimated_peak_bytes", "peak", Some(20)),
    shown("fits", "fits", None),
    shown("estimate_ratio", "est/step", Some(17)),
    shown("examples_per_second", "examples/s", Some(9)),
    shown("collective_bytes", "moved", Some(10)),
    shown("planned_peak_bytes", "planned", Some(7)),
    shown("measured_peak_bytes", "measured", Some(6)),
    shown("train_loss", "train loss", Some(15)),
    shown("test_loss", "test loss", None),
    shown("best_epoch", "best epoch", Some(4)),
    shown("loss_difference", "difference", Some(12)),
    shown("speedup", "speedup", Some(11)),
    shown("batch", "batch", None),
];

/// Columns that people are not shown: what is in the others.
const HIDDEN: [&str; 3] = ["epochs", "step_seconds", "error"];

/// What people are shown a table for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableView {
    /// To compare the runs of a sweep: what each is made with says which it is.
    Sweep,
    /// To find runs: their names and states come with them.
    List,
}

/// The table in a format; Parquet as the bytes of its file.
pub(crate) fn written(
    t: &ResultTable,
    format: ResultFormat,
    view: TableView,
    screen: &Screen,
) -> Result<Vec<u8>, String> {
    Ok(match format {
        ResultFormat::Text => text(t, view, screen).into_bytes(),
        ResultFormat::Csv => in_a_file(t, TableWriter::csv)?,
        ResultFormat::Jsonl => in_a_file(t, TableWriter::jsonl)?,
        ResultFormat::Markdown => markdown(t, view).into_bytes(),
        ResultFormat::Parquet => in_a_file(t, TableWriter::parquet)?,
    })
}

/// What people are shown of a column.
struct Picture<'a> {
    at: usize,
    column: &'a Column,
    title: String,
    lost: Option<u8>,
}

/// The columns that say something: not those without any value, nor those of what is the same for all runs.
fn pictures(t: &ResultTable, view: TableView) -> Vec<Picture<'_>> {
    let says = |at: usize, name: &str| {
        let cells = || t.rows.iter().map(|r| &r[at]);
        if cells().all(|c| *c == Cell::Missing) || HIDDEN.contains(&name) {
            return false;
        }
        let varies = cells().any(|c| Some(c) != cells().next());
        match name {
            "run" => view == TableView::List,
            "state" if view == TableView::List => true,
            "state" => cells().any(|c| *c != Cell::Text("finished".into())),
            "seed" | "devices" | "best_epoch" | "steps" => varies,
            _ => true,
        }
    };
    let columns = t.columns.iter().enumerate().filter(|(i, c)| says(*i, &c.name));
    let picture = |(at, column): (usize, &'_ Column)| (at, column.name.clone());
    columns
        .map(|(at, column)| {
            let (_, name) = picture((at, column));
            let known = SHOWN.iter().find(|s| s.name == name);
            let title = known.map_or_else(|| name.replace('_', " "), |s| s.title.into());
            let title = column.better.as_ref().map_or(title.clone(), |way| format!("{title} ({way})"));
            let metric = name.starts_with("train_") || name.starts_with("validation_");
            let lost = known.map_or(metric.then_some(14), |s| s.lost);
            Picture { at, column, title, lost }
        })
        .collect()
}

fn cell(column: &Column, cell: &Cell) -> String {
    let name = &*column.name;
    match cell {
        Cell::Missing => "-".into(),
        // To the minute, in UTC as files have it.
        Cell::Text(text) if name == "started" => text.get(..16).unwrap_or(text).replace('T', " "),
        Cell::Text(text) => text.clone(),
        Cell::Count(n) if name.ends_with("_bytes") => bytes(*n),
        Cell::Count(n) if name == "batch" || name == "seed" => n.to_string(),
        Cell::Count(n) => thousands(*n),
        Cell::Number(v) if v.is_nan() => "nan".into(),
        Cell::Number(v) if name.starts_with("step_ms") || name.ends_with("_ms") || name == "speedup" => {
            format!("{v:.2}")
        }
        Cell::Number(v) if name == "examples_per_second" => thousands(v.round().max(0.0) as u64),
        Cell::Number(v) if name == "estimate_error" => format!("{:.0} %", 100.0 * v),
        Cell::Number(v) if name == "loss_difference" => format!("{v:+.1e}"),
        Cell::Number(v) if ["train_", "test_", "validation_"].iter().any(|p| name.starts_with(p)) => {
            short_number(*v)
        }
        Cell::Number(v) => short_number(*v),
    }
}

/// For people: the columns that fit.
fn text(t: &ResultTable, view: TableView, screen: &Screen) -> String {
    let all = pictures(t, view);
    let words = |p: &Picture| matches!(p.column.kind, ColumnKind::Text | ColumnKind::Time);
    let align = |p: &Picture| if words(p) { Align::Left } else { Align::Right };
    let mut lost: Vec<(u8, usize)> = all.iter().enumerate().filter_map(|(i, p)| Some((p.lost?, i))).collect();
    lost.sort_unstable();
    let lost: Vec<usize> = lost.into_iter().map(|l| l.1).collect();
    let mut out = Table::new(&all.iter().map(align).collect::<Vec<_>>())
        .style(0, Style::new().bold())
        .dispensable(&lost);
    out.titles(all.iter().map(|p| p.title.clone()));
    for row in &t.rows {
        out.row(all.iter().map(|p| cell(p.column, &row[p.at])));
    }
    out.render_on(screen)
}

/// A table of Markdown, of what people are shown.
fn markdown(t: &ResultTable, view: TableView) -> String {
    let mut all = pictures(t, view);
    // Words come first: they are aligned to the left.
    let words = |p: &Picture| matches!(p.column.kind, ColumnKind::Text | ColumnKind::Time);
    all.sort_by_key(|p| !words(p));
    let words = all.iter().filter(|p| words(p)).count();
    let titles: Vec<String> = all.iter().map(|p| p.title.clone()).collect();
    let rows: Vec<Vec<String>> =
        t.rows.iter().map(|row| all.iter().map(|p| cell(p.column, &row[p.at])).collect()).collect();
    markdown_table(&titles, &rows, words)
}

/// Begins a file of a table in memory.
type BeginFile = fn(Vec<u8>, &[Column]) -> Result<TableWriter<Vec<u8>>, String>;

/// The bytes of a file of it.
fn in_a_file(t: &ResultTable, open: BeginFile) -> Result<Vec<u8>, String> {
    let mut out = open(Vec::new(), &t.columns)?;
    out.write(t)?;
    out.finish()
}
