//! `runs show`: all that the folder of a run says of it.

use super::run_choice::chosen;
use crate::args::RunsShowArgs;
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::table::{Align, Table};
use crate::output::text::{
    bytes, counted, dashed, duration, flops, measure, memory_uses, percent, short_number, thousands,
};
use anstyle::Style;
use meshwright_files::Checked;
use meshwright_report::results::RunRow;
use meshwright_runs::checkpoint::{Best, Entry, Store};
use meshwright_runs::removal::RunContents;
use meshwright_runs::run_dir::{checkpoints_in, read_settings};
use meshwright_runs::{RunCosts, RunEvent, RunLength, RunState, RunSummary, RunUsage};
use serde_json::{Value, json};
use std::path::Path;

/// The most files that are listed.
const LISTED: usize = 20;

/// What is read of a run.
struct ShownRun {
    row: RunRow,
    summary: RunSummary,
    settings: toml::Table,
    history: Vec<RunEvent>,
    usage: RunUsage,
    checkpoints: Vec<Entry>,
    best: Option<Best>,
    contents: RunContents,
    /// What of the checkpoints cannot be used.
    notes: Vec<String>,
}

/// Runs the command.
pub(super) fn show(args: &RunsShowArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let run = read(&chosen(&args.run)?)?;
    run.notes.iter().for_each(|n| console.note(n));
    if console.json() {
        return Ok(console.out_json(&in_json(&run))?);
    }
    let screen = *console.screen();
    Ok(console.out_styled(&text(&run).render_on(&screen))?)
}

fn read(run: &Path) -> Checked<ShownRun> {
    let summary = RunSummary::read(run)?;
    let (contents, folder) = (RunContents::read(run)?, checkpoints_in(run));
    let (mut checkpoints, mut best, mut notes) = (Vec::new(), None, Vec::new());
    if folder.exists().unwrap_or(false) {
        let store = Store::read_only(folder);
        let (listed, skipped) = store.list()?;
        notes.extend(skipped.iter().map(ToString::to_string));
        match store.best() {
            Ok(found) => best = found,
            Err(e) => notes.push(format!("which checkpoint is the best cannot be read: {e}")),
        }
        checkpoints = listed;
    }
    Ok(ShownRun {
        row: RunRow::of(summary.clone(), Path::new("")),
        settings: read_settings(run)?,
        history: RunEvent::read_all(run)?,
        usage: RunUsage::read(run)?,
        contents,
        summary,
        checkpoints,
        best,
        notes,
    })
}

/// Two columns under headings.
struct TwoColumns(Table);

impl TwoColumns {
    fn head(&mut self, title: &str) {
        self.0.text("", Style::new());
        self.0.text(title, Style::new().bold());
    }

    fn row(&mut self, name: &str, value: impl Into<String>) {
        self.0.row([name.to_string(), value.into()]);
    }

    fn some(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            self.row(name, value);
        }
    }
}

fn text(run: &ShownRun) -> Table {
    let mut out = TwoColumns(Table::new(&[Align::Left, Align::Left]));
    let error = run.summary.error.as_ref().map_or(String::new(), |e| format!(": {e}"));
    out.0.text(format!("{}: {}{error}", run.row.name, run.row.state), Style::new().bold());
    settings(&mut out, run);
    results(&mut out, &run.summary);
    time(&mut out, run);
    if let Some(costs) = &run.summary.costs {
        plan(&mut out, costs, run.summary.memory_bytes);
    }
    history(&mut out, run);
    files(&mut out, run);
    commands(&mut out, run);
    out.0
}

fn setting(run: &ShownRun, name: &str) -> Option<String> {
    match run.settings.get(name)? {
        toml::Value::String(text) => Some(text.clone()).filter(|t| !t.is_empty()),
        other => Some(other.to_string()),
    }
}

/// When it saves and evaluates.
fn policy(run: &ShownRun, name: &str) -> Option<String> {
    match run.settings.get("policies")?.get(name)? {
        toml::Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn settings(out: &mut TwoColumns, run: &ShownRun) {
    let s = &run.summary;
    out.head("Settings");
    let preset = s.preset.as_ref().map_or(String::new(), |p| format!(", preset {p}"));
    out.row("model", format!("{} (`{}`{preset})", s.model, s.file));
    out.row("mesh", if s.mesh.is_empty() { "one device" } else { &s.mesh });
    let rules = s.rules.join("; ");
    out.some(
        "layout",
        run.row.layout.clone().map(|l| if l == rules { rules.clone() } else { format!("{l}: {rules}") }),
    );
    out.row("precision", &*s.precision);
    out.row("seed", &*s.seed);
    let length = s.length.map(|l| match l {
        RunLength::Epochs(n) => counted(n.into(), "epoch"),
        RunLength::Steps(n) => counted(n, "step"),
    });
    out.some("length", length);
    let data = setting(run, "data_folder").or_else(|| setting(run, "data"));
    let data = data.unwrap_or_else(|| "the default place".into());
    out.row("data", format!("{data}: {}", counted(s.examples as u64, "example")));
    let list = |all: Vec<String>| all.join(" ");
    out.some("dims", Some(list(s.dims.iter().map(|(n, v)| format!("{n}={v}")).collect())));
    out.some(
        "consts",
        Some(list(s.consts.iter().map(|(n, v)| format!("{n}={}", short_number(*v))).collect())),
    );
    let better = s.better.iter().map(|(name, way)| format!("{way}:{name}"));
    out.some("metrics", Some(list(better.collect())));
    out.some("best by", policy(run, "keep_best"));
    out.some(
        "patience",
        policy(run, "patience").zip(policy(run, "monitor")).map(|(n, by)| format!("{n}, by {by}")),
    );
    let device = setting(run, "device").unwrap_or_else(|| "cpu".into());
    let transport = setting(run, "transport").unwrap_or_else(|| "threads".into());
    out.row("devices", format!("{device}, communicating by {transport}"));
    out.some("weights from", setting(run, "imported"));
}

fn results(out: &mut TwoColumns, s: &RunSummary) {
    let Some(last) = s.last() else { return };
    out.head("Results");
    let done = s.epochs.last().map_or(0, |e| e.epoch);
    out.row("done", format!("{}, {}", counted(s.steps, "step"), counted(done.into(), "epoch")));
    let named = |all: &[(String, f64)]| {
        all.iter().map(|(name, v)| format!(", {name} {}", measure(*v))).collect::<String>()
    };
    let at = if s.rest.is_some() { "since the last epoch" } else { "in the last epoch" };
    out.row("train", format!("loss {}{} ({at})", measure(last.train_loss), named(&last.train)));
    for e in s.evaluated_sets().into_iter().filter_map(|set| s.evaluated_on(set)) {
        let metrics = named(&e.evaluation.metrics);
        let at = thousands(e.step);
        out.row(&e.set, format!("loss {}{metrics} (after step {at})", measure(e.evaluation.loss)));
    }
    let best = match s.best_evaluation() {
        Some((n, v)) => Some(format!("{n}: evaluated loss {}{}", measure(v.loss), named(&v.metrics))),
        None => s.best_epoch().and_then(|n| {
            let e = s.epochs.iter().find(|e| e.epoch == n)?;
            Some(format!("{n}: train loss {}", measure(e.train_loss)))
        }),
    };
    out.some("best epoch", best);
}

fn time(out: &mut TwoColumns, run: &ShownRun) {
    let s = &run.summary;
    let Some(t) = s.step_times else { return };
    out.head("Time");
    let ms = |v: f64| format!("{:.2} ms", v * 1e3);
    out.row("step", format!("{} (least {}, p90 {})", ms(t.median), ms(t.least), ms(t.p90)));
    out.some("speed", s.examples_per_second().map(|v| format!("{} examples/s", thousands(v.round() as u64))));
    out.some("wall time", run.usage.wall_seconds().map(duration));
    let queue: f64 = run.usage.processes.iter().filter_map(|p| p.queue_seconds).sum();
    let noted = run.usage.processes.iter().any(|p| p.queue_seconds.is_some());
    out.some("in the queue", noted.then(|| duration(queue)));
    out.some("utilization", run.usage.mfu.map(|v| format!("{} (MFU)", percent(v))));
    out.some("waiting", run.usage.waiting.map(|v| format!("{} of the steps, in collectives", percent(v))));
}

fn plan(out: &mut TwoColumns, c: &RunCosts, measured: Option<u64>) {
    out.head("A step of a device, by the Plan");
    out.row("operations", flops(c.flops));
    out.row("peak memory", format!("{}: {}", bytes(c.memory.peak_bytes), memory_uses(&c.memory)));
    out.some("measured", measured.map(|m| format!("{} resident, with data and program", bytes(m))));
    out.row("collectives", if c.collectives.is_empty() { "none".into() } else { bytes(c.collective_bytes) });
    for k in &c.collectives {
        let axes = k.axes.join(", ");
        out.row("", format!("{} over {axes}: {} in {}", dashed(&k.op), bytes(k.bytes), thousands(k.count)));
    }
}

fn history(out: &mut TwoColumns, run: &ShownRun) {
    out.head("History");
    for e in &run.history {
        let time = e.time.as_deref().unwrap_or("-");
        let time = time.get(..19).unwrap_or(time).replace('T', " ");
        let job = e.job.as_ref().map_or(String::new(), |j| format!(", {} job {}", j.launcher, j.id));
        let what = match &e.error {
            Some(error) => format!("failed: {error}"),
            None => {
                let many =
                    if e.processes > 1 { format!(", {} processes", e.processes) } else { String::new() };
                format!("{} at step {}, version {}{many}{job}", e.event, thousands(e.step), e.version)
            }
        };
        out.row(&time, what);
    }
}

fn files(out: &mut TwoColumns, run: &ShownRun) {
    out.head("Checkpoints");
    for e in &run.checkpoints {
        let best = run.best.as_ref().filter(|b| b.step == e.meta.step);
        let best =
            best.map_or(String::new(), |b| format!(", the best by {} ({})", b.metric, measure(b.value)));
        out.row(&format!("step {}", thousands(e.meta.step)), format!("{}{best}", bytes(e.bytes)));
    }
    if run.checkpoints.is_empty() {
        out.row("none", "");
    }
    out.head(&format!("Files: {}", bytes(run.contents.bytes())));
    let inside = checkpoints_in(&run.summary.path).path();
    let plain: Vec<_> = run.contents.files.iter().filter(|f| !f.path.starts_with(&inside)).collect();
    for f in plain.iter().take(LISTED).filter(|f| f.bytes > 0) {
        let name = f.path.strip_prefix(&run.summary.path).unwrap_or(&f.path).display();
        out.row(&name.to_string(), bytes(f.bytes));
    }
    if plain.len() > LISTED {
        out.row(&format!("and {} more", plain.len() - LISTED), "");
    }
    if !run.contents.others.is_empty() {
        let others = run.contents.others.len();
        out.row(
            "not of the run",
            if others == 1 { "1 file or folder".into() } else { format!("{others} files or folders") },
        );
    }
}

/// The words of a command as a shell takes them.
fn shell(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "=_-./,:@%+".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        // A word that no shell takes is shown as it is.
        false => shlex::try_quote(word).map_or_else(|_| word.clone(), |w| w.into_owned()),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn made_by(run: &ShownRun) -> Option<String> {
    let first = run.history.iter().find(|e| !e.arguments.is_empty())?;
    let words = first.arguments.iter().skip(1).cloned();
    Some(shell(&std::iter::once("meshwright".to_string()).chain(words).collect::<Vec<_>>()))
}

/// The command that goes on with it, from the folder in which this one was given.
fn resumed_by(run: &ShownRun) -> Option<String> {
    let s = &run.summary;
    let goes_on = matches!(s.state, RunState::Interrupted | RunState::Failed);
    let path = s.path.display().to_string();
    let words = ["meshwright", "train", "--run", &path, "--resume"].map(String::from);
    goes_on.then(|| shell(&words))
}

fn commands(out: &mut TwoColumns, run: &ShownRun) {
    out.head("Commands");
    out.some("made by", made_by(run));
    out.some("in", setting(run, "folder"));
    out.some("resume", resumed_by(run));
}

fn in_json(run: &ShownRun) -> crate::output::json::Object {
    let s = &run.summary;
    let settings = serde_json::to_value(&run.settings).unwrap_or(Value::Null);
    let checkpoint =
        |e: &Entry| json!({ "step": e.meta.step, "epoch": e.meta.epoch, "file": e.file, "bytes": e.bytes });
    let epoch = |e: &meshwright_runs::EpochPoint| {
        let train: serde_json::Map<_, _> = e.train.iter().map(|(n, v)| (n.clone(), (*v).into())).collect();
        json!({ "epoch": e.epoch, "step": e.step, "train_loss": e.train_loss, "train": train,
            "evaluation": e.evaluation.as_ref().map(evaluation), "seconds": e.seconds })
    };
    let evaluations: serde_json::Map<String, Value> = s
        .evaluated_sets()
        .into_iter()
        .filter_map(|set| Some((set.to_string(), evaluation(&s.evaluated_on(set)?.evaluation))))
        .collect();
    let files = run.contents.files.iter();
    let times = s.step_times;
    object([
        ("run", run.row.name.clone().into()),
        ("state", run.row.state.into()),
        ("error", s.error.clone().into()),
        ("settings", settings),
        ("steps", s.steps.into()),
        ("last", s.last().map(epoch).into()),
        ("evaluations", evaluations.into()),
        ("best_epoch", s.best_epoch().into()),
        (
            "step_ms",
            times
                .map(|t| json!({ "least": t.least * 1e3, "median": t.median * 1e3, "p90": t.p90 * 1e3 }))
                .into(),
        ),
        ("examples_per_second", s.examples_per_second().into()),
        ("wall_seconds", run.usage.wall_seconds().into()),
        ("mfu", run.usage.mfu.into()),
        ("waiting", run.usage.waiting.into()),
        ("memory_bytes", s.memory_bytes.into()),
        ("costs", serde_json::to_value(&s.costs).unwrap_or(Value::Null)),
        ("history", serde_json::to_value(&run.history).unwrap_or(Value::Null)),
        ("checkpoints", run.checkpoints.iter().map(checkpoint).collect()),
        ("best", serde_json::to_value(&run.best).unwrap_or(Value::Null)),
        ("files", files.map(|f| json!({ "path": f.path, "bytes": f.bytes })).collect()),
        ("made_by", made_by(run).into()),
        ("resume", resumed_by(run).into()),
    ])
}

fn evaluation(e: &meshwright_runs::metrics::Evaluation) -> Value {
    let all = std::iter::once(("loss", e.loss)).chain(e.metrics.iter().map(|(n, v)| (n.as_str(), *v)));
    Value::Object(all.map(|(name, v)| (name.to_string(), v.into())).collect())
}
