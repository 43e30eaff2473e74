//! The table of runs as columns, whatever it is written as.

use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_runs::{EpochPoint, RunEstimate, RunSummary};
use meshwright_sorted::SortedMap;
use std::cmp::Ordering;
use std::path::Path;

/// Contents of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Words.
    Text,
    /// Times, as texts in RFC 3339.
    Time,
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
    /// Of a metric, whether more (`max`) or less (`min`) of it is better, where the models of all runs that have it say so alike.
    pub better: Option<String>,
}

impl Column {
    /// One that is not better either way.
    pub fn new(name: impl Into<String>, kind: ColumnKind) -> Column {
        Column { name: name.into(), kind, better: None }
    }
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
    /// Its state, in a word: that of a [`RunState`](meshwright_runs::RunState), or `skipped`, `stopped`, `planned`.
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
    /// That of its random numbers; none where its folder holds something else.
    pub seed: Option<u64>,
    /// Summary of its folder; none if there is none yet.
    pub summary: Option<RunSummary>,
    /// Why a search chose it, where one did.
    pub chosen: Option<String>,
}

impl RunRow {
    /// A run that was read from its folder. It is called by its path below `root`, or by that of its folder.
    pub fn of(summary: RunSummary, root: &Path) -> RunRow {
        let below = summary.path.strip_prefix(root).ok().filter(|p| !p.as_os_str().is_empty());
        let alone = || summary.path.file_name().map(Path::new).filter(|_| summary.path == root);
        let name = below.or_else(alone).unwrap_or(&summary.path).display().to_string();
        RunRow {
            name,
            state: summary.state.name(),
            error: summary.error.clone(),
            layout: layout_name(&summary),
            mesh: Some(summary.mesh.clone()).filter(|m| !m.is_empty()),
            dims: summary.dim.clone().into_iter().collect(),
            sets: summary.set.clone().into_iter().collect(),
            seed: summary.seed.parse().ok(),
            summary: Some(summary),
            chosen: None,
        }
    }
}

/// As a sweep calls it: the name of a layout that ships, that of a file without its folder and extension, or the rules of the
/// command line.
fn layout_name(s: &RunSummary) -> Option<String> {
    let file = s.layout_file.as_deref().and_then(|f| f.strip_suffix(".layout"));
    let name = |f: &str| match Path::new(f).file_name().filter(|_| f.starts_with('/')) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => f.strip_prefix("layouts/").unwrap_or(f).to_string(),
    };
    file.map(name).or_else(|| (!s.rules.is_empty()).then(|| s.rules.join("; ")))
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResultTable {
    /// Its columns.
    pub columns: Vec<Column>,
    /// A cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// The estimate of a step before the run.
fn estimate(s: &RunSummary) -> Option<&RunEstimate> {
    s.costs.as_ref()?.estimate.as_ref()
}

impl ResultTable {
    fn add(&mut self, name: &str, kind: ColumnKind, cells: impl Iterator<Item = Cell>) {
        self.columns.push(Column::new(name, kind));
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
        t.programs(rows);
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
        t.add("seed", Count, rows.iter().map(|r| count(r.seed)));
        t.add("steps", Count, of(|s| Cell::Count(s.steps)));
        t.add(
            "epochs",
            Count,
            of(|s| s.epochs.last().map_or(Cell::Count(0), |e| Cell::Count(e.epoch.into()))),
        );
        t.add("step_ms_min", Number, of(|s| number(s.step_times.map(|t| t.least * 1e3))));
        t.add("step_ms_median", Number, of(|s| number(s.step_times.map(|t| t.median * 1e3))));
        if rows.iter().any(|r| r.summary.as_ref().and_then(estimate).is_some()) {
            t.add("estimated_ms", Number, of(|s| number(estimate(s).map(|e| e.seconds * 1e3))));
            t.add("estimate_error", Number, of(|s| number(estimate(s).map(|e| e.error))));
            t.add(
                "estimate_ratio",
                Number,
                of(|s| number(estimate(s).zip(s.step_times).map(|(e, t)| e.seconds / t.median))),
            );
        }
        t.add("step_ms_p90", Number, of(|s| number(s.step_times.map(|t| t.p90 * 1e3))));
        t.add("examples_per_second", Number, of(|s| number(s.examples_per_second())));
        t.add(
            "collective_bytes",
            Count,
            of(|s| count(s.costs.as_ref().map(|c| c.collective_bytes).or(s.bytes_communicated))),
        );
        t.add("planned_peak_bytes", Count, of(|s| count(s.costs.as_ref().map(|c| c.memory.peak_bytes))));
        t.add("measured_peak_bytes", Count, of(|s| count(s.memory_bytes)));
        t.measured(rows);
        t.add("best_epoch", Count, of(|s| count(s.best_epoch().map(u64::from))));
        t.compared(rows);
        t.add("step_seconds", Number, of(|s| number((s.steps > 0).then_some(s.step_seconds))));
        t.add("error", Text, rows.iter().map(|r| text(r.error.as_ref())));
        t
    }

    /// The model, its preset and the type of its numbers: a sweep has one of each, and no such column.
    fn programs(&mut self, rows: &[RunRow]) {
        type Get = fn(&RunSummary) -> Option<&String>;
        let all: [(&str, Get); 3] = [
            ("model", |s| Some(&s.model)),
            ("preset", |s| s.preset.as_ref()),
            ("precision", |s| Some(&s.precision)),
        ];
        for (name, get) in all {
            let mut found: Vec<Option<&String>> =
                rows.iter().filter_map(|r| r.summary.as_ref()).map(get).collect();
            found.dedup();
            if found.len() > 1 {
                let of = |r: &RunRow| r.summary.as_ref().and_then(get).cloned();
                self.add(
                    name,
                    ColumnKind::Text,
                    rows.iter().map(|r| of(r).map_or(Cell::Missing, Cell::Text)),
                );
            }
        }
    }

    /// Settings that the sweep varies: `batch`, then other dims and consts.
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
            self.says_better(rows, name);
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
                self.says_better(rows, name);
            }
        }
    }

    /// Notes of the last column which way the metric in it is better.
    fn says_better(&mut self, rows: &[RunRow], metric: &str) {
        let measured = |s: &&RunSummary| {
            let train = || s.last().is_some_and(|e| e.train.iter().any(|t| t.0 == metric));
            train() || s.evaluations.iter().any(|e| e.evaluation.value(metric).is_some())
        };
        let all = rows.iter().filter_map(|r| r.summary.as_ref()).filter(measured);
        let mut said: Vec<Option<&String>> = all.map(|s| s.better.get(metric)).collect();
        said.dedup();
        if let ([only], Some(column)) = (&said[..], self.columns.last_mut()) {
            column.better = only.cloned();
        }
    }

    /// Distance of each run from the one on one device that computes the same. Losses are compared after equally many
    /// steps.
    fn compared<'a>(&mut self, rows: &'a [RunRow]) {
        let alone = |s: &RunSummary| s.costs.as_ref().is_some_and(|c| c.devices == 1);
        let mut alone_of: SortedMap<&str, Vec<&RunSummary>> = SortedMap::new();
        for s in rows.iter().filter_map(|r| r.summary.as_ref()).filter(|s| alone(s)) {
            alone_of.entry(&s.computes).or_default().push(s);
        }
        let pair = |r: &'a RunRow| {
            let s = r.summary.as_ref().filter(|s| !alone(s))?;
            Some((s, alone_of.get(s.computes.as_str())?))
        };
        let pairs: Vec<_> = rows.iter().map(pair).collect();
        let loss = |s: &RunSummary| s.last().map(|e| e.train_loss);
        let difference = |(s, all): (&RunSummary, &Vec<&RunSummary>)| {
            Some(loss(s)? - loss(all.iter().find(|one| one.steps == s.steps)?)?)
        };
        let speedup = |(s, all): (&RunSummary, &Vec<&RunSummary>)| {
            Some(all.iter().find_map(|one| one.step_times)?.median / s.step_times?.median)
        };
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
    let mut seen = meshwright_sorted::SortedSet::new();
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn run(at: &Path, settings: &str, loss: f64, costs: &str) -> RunSummary {
        create_dir_all(at).unwrap();
        let settings = format!(
            "file = \"m.mw\"\nprecision = \"f32\"\nexamples = 35\neval = true\nfingerprint = \"f\"\n{settings}[dims]\nbatch = 10\n[consts]\nlr = 0.5\n"
        );
        write(at.join("run.toml"), settings).unwrap();
        let log = format!("{{\"event\":\"step\",\"step\":1,\"loss\":{loss},\"seconds\":0.5}}\n");
        write(at.join("metrics.jsonl"), log).unwrap();
        write(at.join("costs.json"), costs).unwrap();
        RunSummary::read(at).unwrap()
    }

    #[test]
    fn a_run_read_back_is_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let costs = |devices: u32| {
            format!(
                "{{\"devices\":{devices},\"batch\":10,\"flops\":1,\"collective_bytes\":0,\"peak_bytes\":1,\"parameter_bytes\":1,\"optimizer_state_bytes\":0,\"activation_bytes\":0,\"collectives\":[]}}"
            )
        };
        let shipped = "model = \"m\"\nseed = \"3\"\nmesh = \"r=2\"\nlayout = [\"batch -> r\"]\nlayout_file = \"layouts/dp.layout\"\n[set]\nlr = 0.5\n[dim]\nbatch = 10\n";
        let two = RunRow::of(run(&root.join("s/two"), shipped, 1.5, &costs(2)), root);
        assert_eq!((two.name.as_str(), two.state, two.seed), ("s/two", "interrupted", Some(3)));
        assert_eq!((two.layout.as_deref(), two.mesh.as_deref()), (Some("dp"), Some("r=2")));
        assert_eq!(
            (two.dims.clone(), two.sets.clone()),
            (vec![("batch".into(), 10)], vec![("lr".into(), 0.5)])
        );
        // One that was asked for in other words, and computes the same.
        let one = RunRow::of(
            run(
                &root.join("one"),
                "model = \"m\"\nseed = \"3\"\nmesh = \"\"\nlayout = []\n[set]\n[dim]\n",
                1.0,
                &costs(1),
            ),
            root,
        );
        assert_eq!((one.layout.clone(), one.mesh.clone(), one.dims.len()), (None, None, 0));
        // Another model, by rules; and the folder that was named itself.
        let at = root.join("other");
        let rules = "model = \"n\"\nseed = \"3\"\nmesh = \"r=2\"\nlayout = [\"a -> r\", \"b -> r\"]\nlayout_file = \"--layout\"\n[set]\n[dim]\n";
        let other = RunRow::of(run(&at, rules, 9.0, &costs(2)), &at);
        assert_eq!((other.name.as_str(), other.layout.as_deref()), ("other", Some("a -> r; b -> r")));

        let table = ResultTable::of(&[two.clone(), one.clone(), other]);
        let cell = |row: usize, name: &str| table.rows[row][table.column(name).unwrap()].clone();
        assert_eq!(cell(0, "loss_difference"), Cell::Number(0.5));
        assert_eq!(cell(2, "loss_difference"), Cell::Missing);
        assert_eq!((cell(0, "model"), cell(2, "model")), (Cell::Text("m".into()), Cell::Text("n".into())));
        assert_eq!(ResultTable::of(&[two.clone(), one.clone()]).column("model"), None);

        // Of another length, from another text, on other data: no difference. A speedup does not ask for the length.
        let again = |name: &str, change: &dyn Fn(&Path)| {
            let at = root.join(name);
            run(&at, shipped, 1.5, &costs(2));
            change(&at);
            RunRow::of(RunSummary::read(&at).unwrap(), root)
        };
        let longer = again("longer", &|at| {
            let log = std::fs::read_to_string(at.join("metrics.jsonl")).unwrap();
            write(at.join("metrics.jsonl"), log.clone() + &log.replace("\"step\":1", "\"step\":2")).unwrap();
        });
        let text = again("text", &|at| {
            write(at.join("model.mw"), "another").unwrap();
            write(at.join("rules.layout"), "").unwrap();
        });
        let data = again("data", &|at| {
            let settings = std::fs::read_to_string(at.join("run.toml")).unwrap();
            write(at.join("run.toml"), settings.replace("fingerprint = \"f\"", "fingerprint = \"g\""))
                .unwrap();
        });
        let table = ResultTable::of(&[one, two, longer, text, data]);
        let column = |name: &str| {
            let at = table.column(name).unwrap();
            table.rows[1..].iter().map(|r| r[at] != Cell::Missing).collect::<Vec<_>>()
        };
        assert_eq!(column("loss_difference"), [true, false, false, false]);
        assert_eq!(column("speedup"), [true, true, false, false]);
    }
}
