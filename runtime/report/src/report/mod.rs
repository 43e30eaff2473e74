//! A page of runs: their table, curves, times and costs. What the charts are made of is the runs one by one; which of them make a
//! line is for the page to say, since its filter changes that.

mod differing_settings;
mod fewer_points;

pub use fewer_points::{ThinCurve, points_each};

use crate::Page;
use crate::results::{Cell, ColumnKind, ResultTable, RunRow};
use differing_settings::Apart;
use meshwright_runs::{EpochPoint, EvaluationPoint, RunSummary};
use meshwright_sorted::{SortedMap, SortedSet};
use serde_json::{Map, Value, json};

/// The script of these pages.
const SCRIPT: &str = include_str!("../assets/report.js");
/// What they have of style beside that of all pages.
const STYLE: &str = include_str!("../assets/report.css");

/// How many numbers a page holds of what is measured once an epoch.
const EPOCH_BUDGET: usize = 200_000;

/// A run of a report.
#[derive(Clone, Debug)]
pub struct ReportedRun {
    /// As a row of the table.
    pub row: RunRow,
    /// Its losses by step; none of a run that is not there yet.
    pub losses: Option<ThinCurve>,
}

/// Some runs, to be shown on a page.
#[derive(Clone, Debug)]
pub struct RunsReport<'a> {
    /// The title of the page.
    pub title: &'a str,
    /// When it was made, for people.
    pub made: &'a str,
    /// The runs, in the order of the table.
    pub runs: &'a [ReportedRun],
    /// Of those that cannot be read, why.
    pub unreadable: &'a [String],
}

impl RunsReport<'_> {
    /// What the page draws.
    pub fn data(&self) -> Value {
        let rows: Vec<RunRow> = self.runs.iter().map(|r| r.row.clone()).collect();
        let mut data = table(&ResultTable::of(&rows));
        let every = self.stride();
        let apart = Apart::of_models(self.runs.iter().filter_map(|r| r.row.summary.as_ref()));
        let runs = self.runs.iter().map(|r| run(r, every, &apart));
        let all = self.runs.iter().filter_map(|r| r.row.summary.as_ref());
        let better: SortedMap<&String, &String> = all.flat_map(|s| &s.better).collect();
        data["better"] = json!(better);
        data["title"] = self.title.into();
        data["made"] = self.made.into();
        data["every"] = every.into();
        data["unreadable"] = self.unreadable.into();
        data["runs"] = runs.collect();
        data
    }

    /// The page, which draws `data`.
    pub fn page(&self, data: Value) -> String {
        Page { title: self.title, data, script: SCRIPT, style: STYLE }.html()
    }

    /// Of how many epochs one is drawn, the same in all runs: else means over seeds would be of other runs at each epoch.
    fn stride(&self) -> usize {
        let trained = |e: &EpochPoint| 1 + e.train.len();
        // Of each set that there is, and not of those alone that an epoch ends with.
        let evaluated = |e: &EvaluationPoint| 1 + e.evaluation.metrics.len();
        let numbers = |s: &RunSummary| {
            let ends: SortedSet<u64> = s.epochs.iter().map(|e| e.step).collect();
            let drawn = s.evaluations.iter().filter(|e| ends.contains(&e.step)).map(evaluated);
            s.epochs.iter().map(trained).chain(drawn).sum::<usize>()
        };
        let all = self.runs.iter().filter_map(|r| r.row.summary.as_ref());
        all.map(numbers).sum::<usize>().div_ceil(EPOCH_BUDGET).max(1)
    }
}

fn table(t: &ResultTable) -> Value {
    let kind = |k| match k {
        ColumnKind::Text | ColumnKind::Time => "text",
        ColumnKind::Count => "count",
        ColumnKind::Number => "number",
    };
    let columns: Vec<Value> = t
        .columns
        .iter()
        .map(|c| json!({ "name": c.name, "kind": kind(c.kind), "better": c.better }))
        .collect();
    let cell = |c: &Cell| match c {
        Cell::Missing => Value::Null,
        Cell::Text(text) => text.as_str().into(),
        Cell::Count(n) => (*n).into(),
        Cell::Number(v) => number(*v),
    };
    let rows: Vec<Vec<Value>> = t.rows.iter().map(|r| r.iter().map(cell).collect()).collect();
    json!({ "columns": columns, "rows": rows })
}

/// A number for a chart or a table: six digits are more than either shows. What JSON lacks is `null`.
fn number(v: f64) -> Value {
    let short = format!("{v:.5e}").parse::<f64>().unwrap_or(v);
    // Whole numbers are shorter without their point.
    if short.fract() == 0.0 && short.abs() < 1e15 { (short as i64).into() } else { short.into() }
}

/// What charts need of a run.
fn run(r: &ReportedRun, every: usize, apart: &SortedMap<&str, Apart<'_>>) -> Value {
    let row = &r.row;
    let mut of = json!({
        "name": row.name,
        "state": row.state,
        "layout": row.layout,
        "mesh": row.mesh,
        "seed": row.seed,
        "chosen": row.chosen,
    });
    if let Some(s) = &row.summary {
        summary(&mut of, s);
        for (name, value) in apart.get(&*s.model).map(|a| a.told(s)).into_iter().flatten() {
            of[name] = value;
        }
        of["epochs"] = epochs(s, every);
    }
    if let Some(t) = &r.losses {
        let losses: Vec<Value> = t.losses.iter().map(|l| number(*l)).collect();
        of["losses"] = json!({ "steps": t.steps, "losses": losses, "of": t.of });
    }
    of
}

fn summary(of: &mut Value, s: &RunSummary) {
    of["model"] = s.model.as_str().into();
    of["preset"] = s.preset.as_deref().into();
    of["precision"] = s.precision.as_str().into();
    // A sweep says what was asked for, such as 2x2; the run knows the names of its axes.
    of["mesh"] = Some(s.mesh.as_str()).filter(|m| !m.is_empty()).into();
    of["examples"] = s.examples.into();
    of["step_seconds"] = s.step_times.map_or(Value::Null, |t| number(t.median));
    of["per_second"] = s.examples_per_second().map_or(Value::Null, number);
    if let Some(c) = &s.costs {
        of["devices"] = c.devices.into();
        of["batch"] = c.batch.into();
        of["collectives"] =
            c.collectives.iter().map(|c| json!([c.op, c.axes.join(" and "), c.count, c.bytes])).collect();
        of["memory"] = json!(c.memory.uses());
    } else {
        of["batch"] = s.dims.get("batch").copied().into();
    }
}

/// By set and name, a value for each epoch that is drawn; `null` where there is none.
fn epochs(s: &RunSummary, every: usize) -> Value {
    let last = s.epochs.len().saturating_sub(1);
    let drawn = |(at, _): &(usize, &EpochPoint)| at % every == 0 || *at == last;
    let shown: Vec<&EpochPoint> = s.epochs.iter().enumerate().filter(drawn).map(|(_, e)| e).collect();
    let mut sets: Map<String, Value> = Map::new();
    let mut note = |set: &str, name: &str, at: usize, value: f64| {
        let metrics = sets.entry(set).or_insert_with(|| json!({}));
        if metrics.get(name).is_none() {
            metrics[name] = vec![Value::Null; shown.len()].into();
        }
        metrics[name][at] = number(value);
    };
    for (at, epoch) in shown.iter().enumerate() {
        note("train", "loss", at, epoch.train_loss);
        epoch.train.iter().for_each(|(name, value)| note("train", name, at, *value));
    }
    // Evaluations are in the order of their steps, as epochs are.
    let mut at = 0;
    for e in &s.evaluations {
        while shown.get(at).is_some_and(|epoch| epoch.step < e.step) {
            at += 1;
        }
        if shown.get(at).is_some_and(|epoch| epoch.step == e.step) {
            note(&e.set, "loss", at, e.evaluation.loss);
            e.evaluation.metrics.iter().for_each(|(name, value)| note(&e.set, name, at, *value));
        }
    }
    let numbers: Vec<u32> = shown.iter().map(|e| e.epoch).collect();
    json!({ "at": numbers, "sets": sets })
}

#[cfg(test)]
mod tests;
