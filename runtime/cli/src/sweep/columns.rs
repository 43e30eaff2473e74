//! The table of a sweep as columns, whatever it is written as.

use super::results::SweepRow;
use super::spec::wrong;
use meshwright_diag::nearest;
use meshwright_train::Checked;
use meshwright_train::runs::{EpochPoint, RunSummary};
use std::cmp::Ordering;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Text,
    Count,
    Number,
}

/// A column; its name is that of a field in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: ColumnKind,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Missing,
    Text(String),
    Count(u64),
    Number(f64),
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ResultTable {
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Cell>>,
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
    pub(crate) fn of(rows: &[SweepRow]) -> ResultTable {
        use ColumnKind::{Count, Number, Text};
        let mut t = ResultTable { columns: Vec::new(), rows: vec![Vec::new(); rows.len()] };
        let of = |get: fn(&RunSummary) -> Cell| {
            rows.iter().map(move |r| r.summary.as_ref().map_or(Cell::Missing, get))
        };
        let text = |v: Option<&String>| v.map_or(Cell::Missing, |v| Cell::Text(v.clone()));
        t.add("run", Text, rows.iter().map(|r| Cell::Text(r.name.clone())));
        t.add("state", Text, rows.iter().map(|r| Cell::Text(r.state().into())));
        t.add("layout", Text, rows.iter().map(|r| text(r.combination.layout.as_ref())));
        let mesh = |r: &SweepRow| {
            text(
                r.summary.as_ref().map(|s| &s.mesh).filter(|m| !m.is_empty()).or(r.combination.mesh.as_ref()),
            )
        };
        t.add("mesh", Text, rows.iter().map(mesh));
        t.add(
            "devices",
            Count,
            of(|s| s.costs.as_ref().map_or(Cell::Missing, |c| Cell::Count(c.devices as u64))),
        );
        t.given(rows);
        t.add("seed", Count, rows.iter().map(|r| Cell::Count(r.combination.seed)));
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
        t.add("error", Text, rows.iter().map(|r| text(r.error().map(String::from).as_ref())));
        t
    }

    /// What the sweep gives its runs: `batch`, then other dims and consts.
    fn given(&mut self, rows: &[SweepRow]) {
        let batch = |r: &SweepRow| {
            let given = r.combination.dims.iter().find(|d| d.0 == "batch").map(|d| d.1 as u64);
            count(r.summary.as_ref().and_then(|s| Some(s.costs.as_ref()?.batch as u64)).or(given))
        };
        self.add("batch", ColumnKind::Count, rows.iter().map(batch));
        let mut names: Vec<&str> =
            rows.iter().flat_map(|r| r.combination.dims.iter().map(|d| &*d.0)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().filter(|n| *n != "batch") {
            let title = if self.has(name) { format!("dim_{name}") } else { name.into() };
            let size = |r: &SweepRow| r.combination.dims.iter().find(|d| d.0 == name).map(|d| d.1 as u64);
            self.add(&title, ColumnKind::Count, rows.iter().map(|r| count(size(r))));
        }
        let mut names: Vec<&str> =
            rows.iter().flat_map(|r| r.combination.sets.iter().map(|s| &*s.0)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let title = if self.has(name) { format!("set_{name}") } else { name.into() };
            let value = |r: &SweepRow| r.combination.sets.iter().find(|s| s.0 == name).map(|s| s.1);
            self.add(&title, ColumnKind::Number, rows.iter().map(|r| number(value(r))));
        }
    }

    /// Losses and metrics at the end: of the steps of the last epoch, and of each set that was evaluated on.
    fn measured(&mut self, rows: &[SweepRow]) {
        let all = || rows.iter().filter_map(|r| r.summary.as_ref());
        let last = |r: &SweepRow, get: &dyn Fn(&EpochPoint) -> Option<f64>| {
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
                |r: &SweepRow, name: &str| number(r.summary.as_ref().and_then(|s| evaluated(s)?.value(name)));
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
    fn compared(&mut self, rows: &[SweepRow]) {
        let alone = |s: &RunSummary| s.costs.as_ref().is_some_and(|c| c.devices == 1);
        let reference = |r: &SweepRow| {
            let same = |o: &&SweepRow| o.combination.on_one_device() == r.combination.on_one_device();
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
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == name)
    }

    /// Sorts the rows by a column, `-COLUMN` in descending order; what is missing comes last. Equal ones stay in order.
    pub(crate) fn sort(&mut self, by: &str) -> Checked<()> {
        let (name, descending) = by.strip_prefix('-').map_or((by, false), |name| (name, true));
        let Some(at) = self.column(name) else {
            let names: Vec<&str> = self.columns.iter().map(|c| &*c.name).collect();
            let d = wrong(format!("the table has no column `{name}`"));
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
