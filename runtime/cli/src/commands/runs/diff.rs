//! `runs diff`: what runs have been made with, and what came of it, side by side.

use super::run_choice::all_chosen;
use crate::args::RunsDiffArgs;
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, dashed, line_diff, short_number, thousands};
use crate::refusal::wrong;
use anstyle::Style;
use meshwright_diag::render::printable;
use meshwright_files::Checked;
use meshwright_runs::run_dir::read_settings;
use meshwright_runs::{RunCosts, RunCurves, RunSummary, StepPoint, read_all_with};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::Recorded;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Settings in which runs differ that are alike: the folder of the command, and what dims and consts say again.
const NOT_COMPARED: [&str; 3] = ["folder", "dim.", "set."];
/// How many rows of losses are shown.
const ROWS: usize = 10;

/// A run, read to be compared.
struct ComparedRun {
    /// `A`, `B` and so on.
    letter: String,
    path: PathBuf,
    settings: SortedMap<String, String>,
    summary: RunSummary,
    curves: RunCurves,
    texts: Vec<RunText>,
}

/// A text that a run was made from.
struct RunText {
    /// `model`, `layout`, or a file that the model uses.
    role: String,
    file: String,
    text: String,
}

/// Runs the command.
pub(super) fn diff(args: &RunsDiffArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let paths = all_chosen(&args.runs)?;
    if paths.len() < 2 {
        let d = wrong(format!("`{}` is compared with itself", paths[0].display()));
        return Err(Box::new(d.help("name another run")).into());
    }
    let logs = read_all_with(&paths, RunCurves::clone);
    let runs = paths.iter().zip(logs).enumerate().map(|(n, (p, log))| read(n, p, log?));
    let runs = runs.collect::<Checked<Vec<_>>>()?;
    if console.json() {
        return Ok(console.out_json(&in_json(&runs))?);
    }
    let screen = *console.screen();
    let mut out = String::new();
    for run in &runs {
        out += &printable(&format!("{}  {}\n", run.letter, run.path.display()));
    }
    for (title, table) in [
        ("Settings that differ", settings(&runs)),
        ("Losses", losses(&runs)),
        ("At the end", ends(&runs)),
        ("Collectives of a step, in bytes of a device", collectives(&runs)),
    ] {
        if let Some(table) = table {
            out += &format!("\n{title}\n{}", table.render_on(&screen));
        }
    }
    out += &first_differences(&runs);
    out += &texts(&runs);
    Ok(console.out_paged(&out, true)?)
}

fn read(n: usize, path: &Path, (summary, curves): (RunSummary, RunCurves)) -> Checked<ComparedRun> {
    let letter = u8::try_from(n).ok().filter(|n| *n < 26).map(|n| char::from(b'A' + n).to_string());
    let mut settings = SortedMap::new();
    flatten("", &toml::Value::Table(read_settings(path)?), &mut settings);
    settings
        .retain(|name, _| !NOT_COMPARED.iter().any(|n| name == n || n.ends_with('.') && name.starts_with(n)));
    let recorded = Recorded::read(path)?;
    let texts = recorded.texts().into_iter().map(|(role, file, text)| RunText {
        role: role.into(),
        file: file.into(),
        text: text.into(),
    });
    Ok(ComparedRun {
        letter: letter.unwrap_or_else(|| (n + 1).to_string()),
        path: path.into(),
        settings,
        summary,
        curves,
        texts: texts.collect(),
    })
}

fn flatten(name: &str, value: &toml::Value, into: &mut SortedMap<String, String>) {
    match value {
        toml::Value::Table(all) => {
            for (key, value) in all {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, into);
            }
        }
        toml::Value::Array(all) => {
            let texts = all.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), String::from));
            into.insert(name.into(), texts.collect::<Vec<_>>().join("; "));
        }
        toml::Value::String(text) => drop(into.insert(name.into(), text.clone())),
        other => drop(into.insert(name.into(), other.to_string())),
    }
}

/// A table with a column for each run, and `more` behind them.
fn beside(runs: &[ComparedRun], first: &[&str], more: &[&str]) -> Table {
    let align: Vec<Align> = std::iter::repeat_n(Align::Left, first.len())
        .chain(std::iter::repeat_n(Align::Right, runs.len()))
        .chain(std::iter::repeat_n(Align::Left, more.len()))
        .collect();
    let mut table = Table::new(&align).style(0, Style::new().bold());
    let letters = runs.iter().map(|r| r.letter.as_str());
    table.titles(first.iter().copied().chain(letters).chain(more.iter().copied()));
    table
}

/// By name, what each run has.
fn different_settings(runs: &[ComparedRun]) -> Vec<(String, Vec<Option<String>>)> {
    let names: SortedSet<&String> = runs.iter().flat_map(|r| r.settings.keys()).collect();
    let values = |name: &&String| {
        let all = runs.iter().map(|r| r.settings.get(*name).filter(|v| !v.is_empty()).cloned());
        (name.to_string(), all.collect::<Vec<_>>())
    };
    let differ = |(_, values): &(String, Vec<Option<String>>)| values.iter().any(|v| *v != values[0]);
    names.iter().map(values).filter(differ).collect()
}

fn settings(runs: &[ComparedRun]) -> Option<Table> {
    let all = different_settings(runs);
    let align = vec![Align::Left; runs.len() + 1];
    let mut table = Table::new(&align).style(0, Style::new().bold());
    table.titles(std::iter::once("").chain(runs.iter().map(|r| r.letter.as_str())));
    for (name, values) in &all {
        let name = name.strip_prefix("dims.").or(name.strip_prefix("consts.")).unwrap_or(name);
        let values = values.iter().map(|v| v.clone().unwrap_or_else(|| "-".into()));
        table.row(std::iter::once(name.to_string()).chain(values));
    }
    if all.is_empty() {
        table = Table::new(&[Align::Left]);
        table.row(["none"]);
    }
    Some(table)
}

/// Losses of the same epochs, or of some of the same steps: the place, and the loss of each run.
fn common_losses(runs: &[ComparedRun]) -> (&'static str, Vec<(u64, Vec<f64>)>) {
    let epochs = |r: &ComparedRun| -> SortedMap<u64, f64> {
        r.curves.epochs.iter().map(|e| (u64::from(e.epoch), e.train_loss)).collect()
    };
    let steps = |r: &ComparedRun| -> SortedMap<u64, f64> {
        r.curves.steps.iter().map(|s| (s.step, s.loss)).collect()
    };
    let common = |of: &dyn Fn(&ComparedRun) -> SortedMap<u64, f64>| -> Vec<(u64, Vec<f64>)> {
        let all: Vec<SortedMap<u64, f64>> = runs.iter().map(of).collect();
        let at = |place: &u64| all.iter().map(|r| r.get(place).copied()).collect::<Option<Vec<f64>>>();
        all[0].keys().filter_map(|place| Some((*place, at(place)?))).collect()
    };
    match common(&epochs) {
        by_epoch if !by_epoch.is_empty() => ("epoch", by_epoch),
        _ => ("step", common(&steps)),
    }
}

/// So many of all, the first and the last among them, evenly between.
fn some<T>(all: &[T], most: usize) -> Vec<&T> {
    let count = all.len().min(most);
    (0..count).map(|i| &all[if count < 2 { 0 } else { i * (all.len() - 1) / (count - 1) }]).collect()
}

fn losses(runs: &[ComparedRun]) -> Option<Table> {
    let (by, common) = common_losses(runs);
    let others: Vec<String> =
        runs.iter().skip(1).map(|r| format!("{} - {}", r.letter, runs[0].letter)).collect();
    let mut table = beside(runs, &[by], &others.iter().map(String::as_str).collect::<Vec<_>>());
    for (place, values) in some(&common, ROWS) {
        let shown = values.iter().map(|v| short_number(*v));
        let differences = values.iter().skip(1).map(|v| match v - values[0] {
            0.0 => "0".into(),
            d => format!("{d:+.2e}"),
        });
        table.row(std::iter::once(thousands(*place)).chain(shown).chain(differences));
    }
    (!common.is_empty()).then_some(table)
}

/// What was measured last, by name.
fn measured(r: &ComparedRun) -> Vec<(String, f64)> {
    let mut all: Vec<(String, f64)> = Vec::new();
    if let Some(last) = r.summary.last() {
        all.push(("train loss".into(), last.train_loss));
        all.extend(last.train.iter().map(|(name, v)| (format!("train {name}"), *v)));
    }
    for e in r.summary.evaluated_sets().into_iter().filter_map(|set| r.summary.evaluated_on(set)) {
        all.push((format!("{} loss", e.set), e.evaluation.loss));
        all.extend(e.evaluation.metrics.iter().map(|(name, v)| (format!("{} {name}", e.set), *v)));
    }
    all.extend(r.summary.step_times.map(|t| ("step ms".to_string(), t.median * 1e3)));
    all
}

fn ends(runs: &[ComparedRun]) -> Option<Table> {
    let all: Vec<Vec<(String, f64)>> = runs.iter().map(measured).collect();
    let mut table = beside(runs, &[""], &[]);
    table.row(std::iter::once("state".to_string()).chain(runs.iter().map(|r| r.summary.state.name().into())));
    table.row(std::iter::once("steps".to_string()).chain(runs.iter().map(|r| thousands(r.summary.steps))));
    let mut seen = SortedSet::new();
    for (name, _) in all.iter().flatten().filter(|(name, _)| seen.insert(name.clone())) {
        let value = |of: &Vec<(String, f64)>| of.iter().find(|m| m.0 == *name).map(|m| short_number(m.1));
        table.row(
            std::iter::once(name.clone()).chain(all.iter().map(|m| value(m).unwrap_or_else(|| "-".into()))),
        );
    }
    Some(table)
}

/// Steps of both whose losses are not the same number, the first of them, and how many steps both have.
fn difference(a: &[StepPoint], b: &[StepPoint]) -> (Option<(u64, f64, f64)>, usize) {
    let there: SortedMap<u64, f64> = a.iter().map(|s| (s.step, s.loss)).collect();
    let both: Vec<(u64, f64, f64)> =
        b.iter().filter_map(|s| Some((s.step, *there.get(&s.step)?, s.loss))).collect();
    let other = |(_, a, b): &&(u64, f64, f64)| a != b && !(a.is_nan() && b.is_nan());
    (both.iter().find(other).copied(), both.len())
}

fn first_differences(runs: &[ComparedRun]) -> String {
    let mut out = String::new();
    let a = &runs[0];
    for b in &runs[1..] {
        let (first, both) = difference(&a.curves.steps, &b.curves.steps);
        let pair = format!("{} and {}", a.letter, b.letter);
        out += &match first {
            _ if both == 0 => format!("\n{pair} have no step in common\n"),
            None => {
                format!("\n{pair}: the losses of all {} are equal\n", counted(both as u64, "common step"))
            }
            Some((step, x, y)) => {
                let at = thousands(step);
                format!("\n{pair}: the first loss that differs is that of step {at}: {x} and {y}\n")
            }
        };
    }
    out
}

/// A kind of collective over some axes, and count and bytes in each run that has it.
type CollectiveRow = (String, Vec<String>, Vec<Option<(u64, u64)>>);

fn collective_rows(runs: &[ComparedRun]) -> Vec<CollectiveRow> {
    let costs: Vec<Option<&RunCosts>> = runs.iter().map(|r| r.summary.costs.as_ref()).collect();
    let mut seen = SortedSet::new();
    let all = costs.iter().flatten().flat_map(|c| &c.collectives);
    all.filter(|c| seen.insert((&c.op, &c.axes)))
        .map(|c| {
            let of = |costs: &Option<&RunCosts>| {
                let same =
                    costs.as_ref()?.collectives.iter().find(|o| (&o.op, &o.axes) == (&c.op, &c.axes))?;
                Some((same.count, same.bytes))
            };
            (c.op.clone(), c.axes.clone(), costs.iter().map(of).collect())
        })
        .collect()
}

/// What became of a collective since the first run.
fn change(values: &[Option<(u64, u64)>]) -> &'static str {
    let others = &values[1..];
    match values[0] {
        None => "new",
        Some(_) if others.iter().all(Option::is_none) => "gone",
        Some(_) if others.iter().any(Option::is_none) => "gone in some",
        first if others.iter().all(|o| *o == first) => "same",
        _ => "changed",
    }
}

fn collectives(runs: &[ComparedRun]) -> Option<Table> {
    let costs: Vec<&RunCosts> = runs.iter().filter_map(|r| r.summary.costs.as_ref()).collect();
    if costs.is_empty() {
        return None;
    }
    let mut table = beside(runs, &["", "over"], &[""]);
    for (op, axes, values) in collective_rows(runs) {
        let shown =
            values.iter().map(|v| v.map_or("-".into(), |(n, b)| format!("{} in {}", bytes(b), thousands(n))));
        let cells = [dashed(&op), axes.join(", ")].into_iter().chain(shown);
        table.row(cells.chain([change(&values).to_string()]));
    }
    let mut total = |name: &str, get: fn(&RunCosts) -> u64| {
        let shown = runs.iter().map(|r| r.summary.costs.as_ref().map_or("-".into(), |c| bytes(get(c))));
        table.row([name.to_string(), String::new()].into_iter().chain(shown));
    };
    total("all", |c| c.collective_bytes);
    total("peak memory", |c| c.memory.peak_bytes);
    Some(table)
}

/// How the texts of the others differ from those of the first, as unified diffs.
fn text_diffs(runs: &[ComparedRun]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let a = &runs[0];
    for b in &runs[1..] {
        let mut roles: Vec<&str> = a.texts.iter().chain(&b.texts).map(|t| t.role.as_str()).collect();
        let mut seen = SortedSet::new();
        roles.retain(|r| seen.insert(*r));
        for role in roles {
            let of = |run: &'_ ComparedRun| {
                let found = run.texts.iter().find(|t| t.role == role);
                let name = found.map_or("(none)", |t| t.file.as_str());
                (format!("{} {name}", run.letter), found.map_or(String::new(), |t| t.text.clone()))
            };
            let ((from, old), (to, new)) = (of(a), of(b));
            if old != new {
                let text = line_diff(&old, &new).unified_diff().header(&from, &to).to_string();
                out.push((b.letter.clone(), text));
            }
        }
    }
    out
}

fn texts(runs: &[ComparedRun]) -> String {
    let all = text_diffs(runs);
    match all.is_empty() {
        true => "\nThe texts of model and layout are the same.\n".into(),
        false => all.iter().map(|d| format!("\n{}", printable(&d.1))).collect(),
    }
}

fn in_json(runs: &[ComparedRun]) -> crate::output::json::Object {
    let letters = |values: Vec<Value>| -> Value {
        Value::Object(runs.iter().map(|r| r.letter.clone()).zip(values).collect())
    };
    let names = runs.iter().map(|r| r.path.display().to_string().into()).collect();
    let settings: serde_json::Map<String, Value> = different_settings(runs)
        .into_iter()
        .map(|(name, values)| (name, letters(values.into_iter().map(Value::from).collect())))
        .collect();
    let (by, common) = common_losses(runs);
    let losses = common.into_iter().map(
        |(at, values)| json!({ by: at, "loss": letters(values.into_iter().map(Value::from).collect()) }),
    );
    let firsts = runs.iter().skip(1).map(|b| {
        let (first, both) = difference(&runs[0].curves.steps, &b.curves.steps);
        json!({ "run": b.letter, "common_steps": both, "first_step": first.map(|f| f.0) })
    });
    let collectives = collective_rows(runs).into_iter().map(|(op, axes, values)| {
        let one = |v: &Option<(u64, u64)>| v.map_or(Value::Null, |(n, b)| json!({ "count": n, "bytes": b }));
        json!({ "op": op, "axes": axes, "change": change(&values), "runs": letters(values.iter().map(one).collect()) })
    });
    object([
        ("runs", letters(names)),
        ("settings", settings.into()),
        ("losses", losses.collect()),
        ("differences", firsts.collect()),
        ("collectives", collectives.collect()),
        (
            "texts",
            text_diffs(runs).into_iter().map(|(run, diff)| json!({ "run": run, "diff": diff })).collect(),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_that_differs_is_found() {
        let points = |losses: &[f64]| -> Vec<StepPoint> {
            losses.iter().zip(1..).map(|(l, step)| StepPoint { step, loss: *l, seconds: 0.0 }).collect()
        };
        let of = |a: &[f64], b: &[f64]| difference(&points(a), &points(b));
        assert_eq!(of(&[1.0, 2.0, 3.0], &[1.0, 2.5]), (Some((2, 2.0, 2.5)), 2));
        assert_eq!(of(&[1.0, f64::NAN], &[1.0, f64::NAN, 4.0]), (None, 2));
        assert_eq!(of(&[], &[1.0]), (None, 0));
        assert!(of(&[f64::NAN], &[1.0]).0.is_some_and(|(step, a, b)| step == 1 && a.is_nan() && b == 1.0));
    }

    #[test]
    fn some_rows_have_the_first_and_the_last() {
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(some(&all, 4), [&0, &33, &66, &99]);
        assert_eq!(some(&all[..2], 4), [&0, &1]);
        assert!(some(&all[..0], 4).is_empty() && some(&all[..1], 4) == [&0]);
    }

    #[test]
    fn collectives_appear_and_vanish() {
        let all = Some((2, 64));
        assert_eq!(
            (change(&[all, None]), change(&[None, all]), change(&[all, all])),
            ("gone", "new", "same")
        );
        assert_eq!((change(&[all, Some((1, 64))]), change(&[all, all, None])), ("changed", "gone in some"));
    }
}
