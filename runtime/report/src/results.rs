//! The table of runs as columns, whatever it is written as.

use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_train::Checked;
use meshwright_train::runs::{EpochPoint, RunSummary};
use std::cmp::Ordering;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Words.
    Text,
    /// Whole numbers.
    Count,
    /// Numbers.
    Number,
}

/// A column; its name is that of a field in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// In lower case with `_`.
    pub name: String,
    /// Of all its cells that are not missing.
    pub kind: ColumnKind,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// The run has no such value, or not yet.
    Missing,
    /// Words.
    Text(String),
    /// A whole number.
    Count(u64),
    /// A number.
    Number(f64),
}

/// A run, and what it is made with beside what all runs have alike.
#[derive(Clone, Debug)]
pub struct RunRow {
    /// Its folder's.
    pub name: String,
    /// How it stands, in a word: that of a [`RunState`](meshwright_train::runs::RunState), or `skipped`, `stopped`, `planned`.
    pub state: &'static str,
    /// Why it failed, or was left out.
    pub error: Option<String>,
    /// None for a run on one device.
    pub layout: Option<String>,
    /// As it was asked for.
    pub mesh: Option<String>,
    /// Sizes that were asked for.
    pub dims: Vec<(String, usize)>,
    /// Consts that were asked for.
    pub sets: Vec<(String, f64)>,
    /// That of its random numbers.
    pub seed: u64,
    /// What its folder says; none where there is none yet.
    pub summary: Option<RunSummary>,
}

impl RunRow {
    /// Whether both have equal sizes, consts and seed: on different devices, they compute the same.
    fn is_made_like(&self, other: &RunRow) -> bool {
        (&self.dims, &self.sets, self.seed) == (&other.dims, &other.sets, other.seed)
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultTable {
    /// Its columns.
    pub columns: Vec<Column>,
    /// A cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

impl ResultTable {
    fn add(&mut self, name: &str, kind: ColumnKind, cells: impl Iterator<Item = Cell>) {
        self.columns.push(Column { name: name.into(), kind });
        self.rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|c| c.name == name)
    }

    /// The table of some runs.
    pub fn of(rows: &[RunRow]) -> ResultTable {
        use ColumnKind::{Count, Number, Text};
        let mut t = ResultTable { columns: Vec::new(), rows: vec![Vec::new(); rows.len()] };
        let of = |get: fn(&RunSummary) -> Cell| {
            rows.iter().map(move |r| r.summary.as_ref().map_or(Cell::Missing, get))
        };
        let text = |v: Option<&String>| v.map_or(Cell::Missing, |v| Cell::Text(v.clone()));
        t.add("run", Text, rows.iter().map(|r| Cell::Text(r.name.clone())));
        t.add("state", Text, rows.iter().map(|r| Cell::Text(r.state.into())));
        t.add("layout", Text, rows.iter().map(|r| text(r.layout.as_ref())));
        let mesh = |r: &RunRow| {
            text(r.summary.as_ref().map(|s| &s.mesh).filter(|m| !m.is_empty()).or(r.mesh.as_ref()))
        };
        t.add("mesh", Text, rows.iter().map(mesh));
        t.add(
            "devices",
            Count,
            of(|s| s.costs.as_ref().map_or(Cell::Missing, |c| Cell::Count(c.devices as u64))),
        );
        t.given(rows);
        t.add("seed", Count, rows.iter().map(|r| Cell::Count(r.seed)));
        t.add("steps", Count, of(|s| Cell::Count(s.steps)));
        t.add(
            "epochs",
            Count,
            of(|s| s.epochs.last().map_or(Cell::Count(0), |e| Cell::Count(e.epoch.into()))),
        );
        t.add("step_ms_min", Number, of(|s| number(s.step_times.map(|t| t.least * 1e3))));
        t.add("step_ms_median", Number, of(|s| number(s.step_times.map(|t| t.median * 1e3))));
        t.add("step_ms_p90", Number, of(|s| number(s.step_times.map(|t| t.p90 * 1e3))));
        t.add("examples_per_second", Number, of(|s| number(s.examples_per_second())));
        t.add(
            "collective_bytes",
            Count,
            of(|s| count(s.costs.as_ref().map(|c| c.collective_bytes).or(s.bytes_communicated))),
        );
        t.add("planned_peak_bytes", Count, of(|s| count(s.costs.as_ref().map(|c| c.peak_bytes))));
        t.add("measured_peak_bytes", Count, of(|s| count(s.memory_bytes)));
        t.measured(rows);
        t.add("best_epoch", Count, of(|s| count(s.best_epoch().map(u64::from))));
        t.compared(rows);
        t.add("step_seconds", Number, of(|s| number((s.steps > 0).then_some(s.step_seconds))));
        t.add("error", Text, rows.iter().map(|r| text(r.error.as_ref())));
        t
    }

    /// What the sweep gives its runs: `batch`, then other dims and consts.
    fn given(&mut self, rows: &[RunRow]) {
        let batch = |r: &RunRow| {
            let given = r.dims.iter().find(|d| d.0 == "batch").map(|d| d.1 as u64);
            count(r.summary.as_ref().and_then(|s| Some(s.costs.as_ref()?.batch as u64)).or(given))
        };
        self.add("batch", ColumnKind::Count, rows.iter().map(batch));
        let mut names: Vec<&str> = rows.iter().flat_map(|r| r.dims.iter().map(|d| &*d.0)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().filter(|n| *n != "batch") {
            let title = if self.has(name) { format!("dim_{name}") } else { name.into() };
            let size = |r: &RunRow| r.dims.iter().find(|d| d.0 == name).map(|d| d.1 as u64);
            self.add(&title, ColumnKind::Count, rows.iter().map(|r| count(size(r))));
        }
        let mut names: Vec<&str> = rows.iter().flat_map(|r| r.sets.iter().map(|s| &*s.0)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let title = if self.has(name) { format!("set_{name}") } else { name.into() };
            let value = |r: &RunRow| r.sets.iter().find(|s| s.0 == name).map(|s| s.1);
            self.add(&title, ColumnKind::Number, rows.iter().map(|r| number(value(r))));
        }
    }

    /// Losses and metrics at the end: of the steps of the last epoch, and of each set that was evaluated on.
    fn measured(&mut self, rows: &[RunRow]) {
        let all = || rows.iter().filter_map(|r| r.summary.as_ref());
        let last = |r: &RunRow, get: &dyn Fn(&EpochPoint) -> Option<f64>| {
            number(r.summary.as_ref().and_then(|s| get(s.last()?)))
        };
        self.add("train_loss", ColumnKind::Number, rows.iter().map(|r| last(r, &|e| Some(e.train_loss))));
        let mut metrics: Vec<&str> =
            all().filter_map(RunSummary::last).flat_map(|e| e.train.iter().map(|t| &*t.0)).collect();
        distinct(&mut metrics);
        for name in metrics {
            let value = |e: &EpochPoint| e.train.iter().find(|t| t.0 == name).map(|t| t.1);
            self.add(&format!("train_{name}"), ColumnKind::Number, rows.iter().map(|r| last(r, &value)));
        }
        let mut sets: Vec<&str> = all().flat_map(|s| s.evaluations.iter().map(|e| &*e.set)).collect();
        distinct(&mut sets);
        // The test set stands, even where nothing was evaluated.
        sets.retain(|s| *s != "test");
        for set in sets.into_iter().chain(["test"]) {
            let evaluated = |s: &RunSummary| s.evaluated_on(set).map(|e| e.evaluation.clone());
            let value =
                |r: &RunRow, name: &str| number(r.summary.as_ref().and_then(|s| evaluated(s)?.value(name)));
            self.add(&format!("{set}_loss"), ColumnKind::Number, rows.iter().map(|r| value(r, "loss")));
            let found: Vec<_> = all().filter_map(evaluated).collect();
            let mut metrics: Vec<&str> = found.iter().flat_map(|e| e.metrics.iter().map(|m| &*m.0)).collect();
            distinct(&mut metrics);
            for name in metrics.into_iter().filter(|n| *n != "loss") {
                self.add(&format!("{set}_{name}"), ColumnKind::Number, rows.iter().map(|r| value(r, name)));
            }
        }
    }

    /// How far each run is from the one on one device that has the same sizes, consts and seed.
    fn compared(&mut self, rows: &[RunRow]) {
        let alone = |s: &RunSummary| s.costs.as_ref().is_some_and(|c| c.devices == 1);
        let reference = |r: &RunRow| {
            let same = |o: &&RunRow| o.is_made_like(r);
            let candidates = rows.iter().filter(same).filter_map(|o| o.summary.as_ref());
            candidates.into_iter().find(|s| alone(s))
        };
        let pairs: Vec<_> =
            rows.iter().map(|r| r.summary.as_ref().filter(|s| !alone(s)).zip(reference(r))).collect();
        let loss = |s: &RunSummary| s.last().map(|e| e.train_loss);
        let difference = |(s, one): (&RunSummary, &RunSummary)| Some(loss(s)? - loss(one)?);
        let speedup =
            |(s, one): (&RunSummary, &RunSummary)| Some(one.step_times?.median / s.step_times?.median);
        self.add("loss_difference", ColumnKind::Number, pairs.iter().map(|p| number(p.and_then(difference))));
        self.add("speedup", ColumnKind::Number, pairs.iter().map(|p| number(p.and_then(speedup))));
    }

    /// The column of a name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// Sorts the rows by a column, `-COLUMN` in descending order; what is missing comes last. Equal ones stay in order.
    ///
    /// # Errors
    ///
    /// E0516 for a column that the table lacks.
    pub fn sort(&mut self, by: &str) -> Checked<()> {
        let (name, descending) = by.strip_prefix('-').map_or((by, false), |name| (name, true));
        let Some(at) = self.column(name) else {
            let names: Vec<&str> = self.columns.iter().map(|c| &*c.name).collect();
            let d = Diagnostic::error(codes::E0516, format!("the table has no column `{name}`"));
            let d = match nearest(name, names.iter().copied()) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d,
            };
            return Err(Box::new(d.help(format!("it has {}", names.join(", ")))));
        };
        self.rows.sort_by(|a, b| order(&a[at], &b[at], descending));
        Ok(())
    }
}

fn distinct(names: &mut Vec<&str>) {
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|n| seen.insert(*n));
}

fn number(v: Option<f64>) -> Cell {
    v.map_or(Cell::Missing, Cell::Number)
}

fn count(v: Option<u64>) -> Cell {
    v.map_or(Cell::Missing, Cell::Count)
}

fn order(a: &Cell, b: &Cell, descending: bool) -> Ordering {
    let missing = |c: &Cell| matches!(c, Cell::Missing) || matches!(c, Cell::Number(v) if v.is_nan());
    let compared = match (a, b) {
        _ if missing(a) || missing(b) => return missing(a).cmp(&missing(b)),
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        (Cell::Count(a), Cell::Count(b)) => a.cmp(b),
        (Cell::Number(a), Cell::Number(b)) => a.total_cmp(b),
        _ => Ordering::Equal,
    };
    if descending { compared.reverse() } else { compared }
}
