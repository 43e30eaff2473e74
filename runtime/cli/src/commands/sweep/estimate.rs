//! `sweep --estimate`: what a step of each combination would take on a machine. Nothing runs, and nothing is written to the
//! folder of the sweep.

use super::folder;
use super::report::AskedTable;
use super::runs::{given, train_args};
use crate::args::SweepArgs;
use crate::commands::command_end::CommandEnd;
use crate::commands::model::estimate::of_machine;
use crate::commands::model::note_assumed_rates;
use crate::output::console::Console;
use crate::refusal::wrong;
use crate::stop::Stop;
use crate::sweep::combination::Combination;
use crate::sweep::grid::combinations;
use crate::sweep::results::{Problem, SweepRow};
use crate::sweep::spec::SweepSpec;
use meshwright_cost::estimate::{Estimate, Fits};
use meshwright_diag::{Diagnostic, Sources};
use meshwright_files::folder::Folder;
use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable, RunRow};
use meshwright_sorted::SortedMap;
use meshwright_train::estimates::{EstimateOptions, estimated};
use meshwright_train::{Failure, Project, ProjectOptions};

/// Why there is no estimate.
struct Unestimated {
    found: Vec<Diagnostic>,
    sources: Sources,
}

/// Estimates all combinations, and delivers their table.
pub(super) fn run(
    args: &SweepArgs,
    spec: &SweepSpec,
    dir: &Folder,
    asked: &AskedTable,
    console: &mut Console,
) -> Result<(), CommandEnd> {
    if let Some(at) = spec.folder.as_deref() {
        folder::enter(at)?;
    }
    let (_, machine) = of_machine(&args.machine, console)?;
    let options = EstimateOptions::of(machine);
    let all = combinations(spec)?;
    let Some(first) = all.first() else {
        return Err(Box::new(wrong("there is no combination to estimate".into())).into());
    };
    let train = train_args(spec, first, &dir.path().join(first.name()))?;
    let given = given(spec, &train);
    // Seeds change no time.
    let mut known: SortedMap<String, Result<Estimate, String>> = SortedMap::new();
    let mut rows = vec![];
    let mut found = vec![];
    for c in &all {
        let name = Combination { seed: 0, ..c.clone() }.name();
        let one = known.entry(name).or_insert_with(|| {
            estimate(&c.options(&given), &options).map_err(|why| {
                console.note(&format!("`{}` is left out:", c.name()));
                console.diagnostics(&why.found, &why.sources);
                let first = why.found.iter().find(|d| d.is_error());
                first.map_or(String::new(), |d| format!("{}: {}", d.code.id, d.message))
            })
        });
        let problem = one.as_ref().err().map(|why| Problem::Skipped(why.clone()));
        rows.push(SweepRow::of(c, problem, None).run());
        found.push(one.as_ref().ok().cloned());
    }
    if found.iter().all(Option::is_none) {
        return Err(Stop::Diagnosed.into());
    }
    note_assumed_rates(&options.machine.name, found.iter().flatten().flat_map(|e| &e.assumed_rates), console);
    asked.deliver_table(table(&rows, &found), console)
}

fn estimate(options: &ProjectOptions, asked: &EstimateOptions) -> Result<Estimate, Unestimated> {
    let loaded = Project::load(options);
    let sources = loaded.sources;
    let Some(project) = loaded.project else {
        return Err(Unestimated { found: loaded.diagnostics, sources });
    };
    estimated(&project, &sources, asked).map_err(|failure| match failure {
        Failure::Diagnostics(found) => Unestimated { found, sources },
        // An estimate asks no device.
        Failure::Exec(_) | Failure::Elsewhere => Unestimated { found: vec![], sources },
    })
}

/// What the rows are made with, and their estimates.
fn table(rows: &[RunRow], found: &[Option<Estimate>]) -> ResultTable {
    let whole = ResultTable::of(rows);
    let mut table = ResultTable { columns: vec![], rows: vec![vec![]; rows.len()] };
    // Nothing is known of runs that are not there.
    let says = |at: usize| whole.rows.iter().any(|row| row[at] != Cell::Missing);
    let mut add = |column: Column, cells: Vec<Cell>| {
        table.columns.push(column);
        table.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    };
    let kept = |at: usize| -> Vec<Cell> { whole.rows.iter().map(|row| row[at].clone()).collect() };
    let error = whole.column("error");
    for (at, column) in whole.columns.iter().enumerate().filter(|(at, _)| says(*at) && Some(*at) != error) {
        add(column.clone(), kept(at));
    }
    let of = |get: fn(&Estimate) -> Cell| -> Vec<Cell> {
        found.iter().map(|e| e.as_ref().map_or(Cell::Missing, get)).collect()
    };
    add(Column::new("devices", ColumnKind::Count), of(|e| Cell::Count(e.devices as u64)));
    add(Column::new("estimated_ms", ColumnKind::Number), of(|e| Cell::Number(e.seconds * 1e3)));
    add(Column::new("estimate_error", ColumnKind::Number), of(|e| Cell::Number(e.error)));
    let exposed = of(|e| Cell::Number(e.breakdown.exposed_seconds() * 1e3));
    add(Column::new("exposed_ms", ColumnKind::Number), exposed);
    let peak = of(|e| Cell::Count(e.memory.peak_bytes));
    add(Column::new("estimated_peak_bytes", ColumnKind::Count), peak);
    add(Column::new("fits", ColumnKind::Text), of(|e| Cell::Text(fits(e.memory.fits).into())));
    if let Some(at) = error {
        add(whole.columns[at].clone(), kept(at));
    }
    table
}

/// As JSON of estimates has it.
fn fits(of: Fits) -> &'static str {
    match of {
        Fits::Yes => "yes",
        Fits::Tight { .. } => "tight",
        Fits::No { .. } => "no",
    }
}
