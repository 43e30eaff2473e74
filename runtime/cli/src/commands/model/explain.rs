//! `explain`: what a layout does to a model, or the page of a code, an op, a layer of the standard library or another word.

use super::{estimate, passes, plan_page};
use crate::args::{DeviceChoice, ExplainArgs};
use crate::output::console::Console;
use crate::output::explain_table;
use crate::output::explain_table::View;
use crate::output::json::object;
use crate::stop::Stop;
use meshwright_core::Layout;
use meshwright_core::explain::{
    CollectiveTimes, DeviceTotals, EstimatedStep, Report, SlowMatmulReport, alternatives, explain, in_bf16,
    note_no_kernels, recomputed,
};
use meshwright_core::reference::{self as words, WordPage};
use meshwright_cost::estimate::{CollectiveEstimate, family_error};
use meshwright_diag::{Diagnostic, Sources, Span, codes, nearest};
use meshwright_exec::{SlowMatmul, slow_matmuls};
use meshwright_ops::Family;
use meshwright_ops::reference::{named, reference};
use meshwright_plan::Plan;
use meshwright_runs::catalog::{MODELS, find};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::estimates::{EstimateOptions, estimated};
use meshwright_train::project::line_of;
use meshwright_train::project::standard_library;
use meshwright_train::project::standard_library::LayerPage;
use std::path::Path;

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs, console: &mut Console) -> Result<(), Stop> {
    if is_code(&args.topic) {
        return page(&args.topic, console);
    }
    let (ops, words) = (named(&args.topic), words::named(&args.topic));
    let layers: Vec<LayerPage> =
        standard_library::layers().into_iter().filter(|l| l.name == args.topic).collect();
    let known = !ops.is_empty() || !words.is_empty() || !layers.is_empty();
    if known && find(MODELS, &args.topic).is_none() && !Path::new(&args.topic).exists() {
        ops.iter().enumerate().try_for_each(|(i, f)| op(f, i > 0, console))?;
        let before = ops.len();
        words.iter().enumerate().try_for_each(|(i, w)| word(w, before + i > 0, console))?;
        let before = before + words.len();
        return layers.iter().enumerate().try_for_each(|(i, l)| layer(l, before + i > 0, console));
    }
    if args.passes.device.is_some() && args.why.is_some() {
        return Err(Stop::Usage(
            "`--device` is for the report, the page, `--emit device` and `--emit burn`: leave `--why` out"
                .into(),
        ));
    }
    if let Some(file) = &args.html {
        return plan_page::write(args, file, console);
    }
    if args.project.layouts().len() > 1 {
        return Err(Stop::Usage(
            "several layouts make a page, `--html plan.html`; `meshwright compare` has tables of them".into(),
        ));
    }
    let view = View {
        all: args.view.all,
        phases: args.view.phases.iter().map(|p| p.phase()).collect(),
        globs: args.view.globs.clone(),
        only_collectives: args.view.only.is_some(),
    };
    if console.json() && view != View::default() {
        let options = "`--all`, `--phase`, `--match` and `--only`";
        return Err(Stop::Usage(format!(
            "{options} choose from the text: with `--format json` the report has everything"
        )));
    }
    let options = args.project.options(&args.topic);
    let Some(made) = passes::make(&options, args.program.program, &args.passes, console)? else {
        return Ok(());
    };
    if let Some(question) = &args.why {
        return why(&made, question, console);
    }
    let mut report = explain(&made.compiled, &|span| line_of(&made.sources, span));
    if made.trains {
        let less = |layout: &Layout| made.under(layout);
        report.recompute = recomputed(&made.step, &made.project.layout, &made.compiled, less);
        report.alternatives = alternatives(&made.project.layout, &made.compiled, less);
    }
    if let Some(kind) = args.passes.device {
        add_device(&mut report, &made.compiled.plan, kind, console)?;
    }
    add_estimate(&mut report, args, &made, console)?;
    if console.json() {
        return console.out_json(&report);
    }
    if let Some(paths) = explain_table::unmatched(&report, &view) {
        return unmatched(&view, &paths, console);
    }
    if !made.trains && args.program.program.is_none() {
        let shown = passes::unasked(made.step.program);
        console.note(&format!("the model has no `train` block: this is {shown}"));
    }
    let text = explain_table::render(&report, &view, console.screen());
    console.out_paged(&text, !args.pager.no_pager)
}

/// Adds what a device of that kind launches, moves and holds, and what it has no fast kernel for.
fn add_device(
    report: &mut Report,
    plan: &Plan,
    kind: DeviceChoice,
    console: &mut Console,
) -> Result<(), Stop> {
    let mut device_plan = |rank: usize| passes::device_plan((plan, rank, passes::target(kind)), console);
    let device = device_plan(0)?;
    note_no_kernels(&mut report.attention, plan, &device.attention_without_kernel);
    report.in_bf16 = in_bf16(plan, &device.fp8_declined);
    let totals = device.totals(plan);
    let stages = report.pipeline.iter_mut().flat_map(|p| &mut p.stages);
    for (stage, on) in stages.zip(plan.device_blocks()) {
        let device = device_plan(on.rank())?;
        (stage.peak_bytes, stage.arena_bytes) = (device.peak_on(plan, &on), Some(device.arena.bytes));
    }
    report.device = Some(DeviceTotals {
        device: device.target.to_string(),
        kernels: totals.kernels,
        burn_operations: totals.burn,
        read_bytes: totals.traffic.read,
        written_bytes: totals.traffic.written,
        arena_bytes: totals.arena_bytes,
        memory: device.peak_memory(plan),
    });
    if kind == DeviceChoice::Cuda {
        report.slow_products = slow(plan)?;
    }
    Ok(())
}

/// Adds the time of the step and of each collective on the machine that was named.
fn add_estimate(
    report: &mut Report,
    args: &ExplainArgs,
    made: &passes::Made,
    console: &mut Console,
) -> Result<(), Stop> {
    let Some(machine) = estimate::of_machine_if_named(&args.machine, console)?.filter(|_| made.trains) else {
        return Ok(());
    };
    let asked = EstimateOptions::of(machine);
    let found = estimated(&made.project, &made.sources, &asked);
    let found = found.map_err(|e| console.failed(e, &made.sources))?;
    super::note_assumed_rates(&asked.machine.name, &found.assumed_rates, console);
    let error = family_error(&asked.machine, &asked.engine, "collective");
    let time = |c: &CollectiveEstimate| {
        (c.step, CollectiveTimes { seconds: c.seconds, exposed_seconds: c.exposed_seconds, error })
    };
    let times: SortedMap<usize, CollectiveTimes> = found.collectives.iter().map(time).collect();
    report.collectives.iter_mut().for_each(|c| c.time = times.get(&c.start).copied());
    report.estimate = Some(EstimatedStep {
        machine: asked.machine.name,
        seconds: found.seconds,
        error: found.error,
        exposed_seconds: found.breakdown.exposed_seconds(),
    });
    Ok(())
}

/// Large products that no fast kernel of a GPU computes.
fn slow(plan: &Plan) -> Result<Vec<SlowMatmulReport>, Stop> {
    let found = slow_matmuls(plan).map_err(|e| Stop::Internal(Some(e.to_string())))?;
    let one = |p: SlowMatmul| {
        let origin = plan.steps[p.step].origin.first();
        let (path, line) = origin.map_or((String::new(), 0), |o| (o.path.to_string(), o.line));
        SlowMatmulReport { path, line, extents: p.extents, because: p.because }
    };
    Ok(found.into_iter().map(one).collect())
}

/// No value has a path like those of `--match`.
fn unmatched(view: &View, paths: &SortedSet<&str>, console: &mut Console) -> Result<(), Stop> {
    let globs: Vec<String> = view.globs.iter().map(|g| format!("`{g}`")).collect();
    let d = Diagnostic::error(codes::E0523, format!("no value has a path like {}", globs.join(" or ")));
    let near = view.globs.iter().find_map(|g| nearest(g.trim_end_matches(".*"), paths.iter().copied()));
    let some: Vec<String> = paths.iter().take(12).map(|p| format!("`{p}`")).collect();
    let d = match near {
        Some(near) => d.help(format!("did you mean `--match '{near}'`?")),
        None => d.help(format!("name one of the paths, such as {}", some.join(", "))),
    };
    console.diagnostics(&[d], &Sources::new());
    Err(Stop::Diagnosed)
}

/// Why a dim of a value is split as it is.
fn why(made: &passes::Made, question: &str, console: &mut Console) -> Result<(), Stop> {
    let sources = &made.sources;
    let place = |span| (span != Span::default()).then(|| sources.locate(span));
    match meshwright_core::why::why(&made.compiled.spmd, &made.project.layout, question, &place) {
        Ok(answers) if console.json() => answers.iter().try_for_each(|a| console.out_json(a)),
        Ok(answers) => console.out(&meshwright_core::why::text(&answers)),
        Err(d) => {
            console.diagnostics(&[*d], sources);
            Err(Stop::Diagnosed)
        }
    }
}

/// Whether it looks like a code: `E` and digits.
fn is_code(topic: &str) -> bool {
    let digits = topic.strip_prefix(['E', 'e']);
    digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

/// What the registry says of an op.
fn op(family: &Family, further: bool, console: &mut Console) -> Result<(), Stop> {
    let r = reference(family);
    if console.json() {
        return console.out_json(&object([
            ("op", family.name.into()),
            ("form", r.form.into()),
            ("doc", r.doc.into()),
            ("options", r.options.into()),
            ("types", r.types.into()),
            ("gradient", r.gradient.into()),
        ]));
    }
    let blank = if further { "\n" } else { "" };
    let gradient = if r.gradient { "has a gradient" } else { "has no gradient" };
    console.out(&format!("{blank}{}\n\n{}\n\n", r.form, r.doc))?;
    r.options.iter().try_for_each(|o| console.out(&format!("  {o}\n")))?;
    r.types.iter().try_for_each(|t| console.out(&format!("  {t}\n")))?;
    console.out(&format!("  {gradient}\n"))
}

/// Prints the page of an optimizer, an initializer, a learning-rate schedule, a keyword or a built-in.
fn word(page: &WordPage, further: bool, console: &mut Console) -> Result<(), Stop> {
    if console.json() {
        return console.out_json(&object([
            ("kind", page.kind.text().into()),
            ("name", page.name.into()),
            ("form", page.form.as_str().into()),
            ("doc", page.doc.into()),
            ("settings", page.settings.clone().into()),
        ]));
    }
    let blank = if further { "\n" } else { "" };
    console.out(&format!("{blank}{}\n\n{}: {}\n", page.form, page.kind.text(), page.doc))?;
    let gap = if page.settings.is_empty() { "" } else { "\n" };
    console.out(gap)?;
    page.settings.iter().try_for_each(|s| console.out(&format!("  {s}\n")))
}

/// A layer of the standard library, with its text.
fn layer(page: &LayerPage, further: bool, console: &mut Console) -> Result<(), Stop> {
    if console.json() {
        return console.out_json(&object([
            ("kind", "layer".into()),
            ("use", page.file.as_str().into()),
            ("name", page.name.as_str().into()),
            ("form", page.form.as_str().into()),
            ("doc", page.doc.as_str().into()),
            ("text", page.text.into()),
        ]));
    }
    let blank = if further { "\n" } else { "" };
    console
        .out(&format!("{blank}{}\n\nlayer of \"{}\": {}\n\n{}\n", page.form, page.file, page.doc, page.text))
}

fn page(topic: &str, console: &mut Console) -> Result<(), Stop> {
    let Some(code) = codes::find(topic) else {
        let found = Diagnostic::error(codes::E0521, format!("there is no code `{topic}`"));
        let near = nearest_code(topic).map(|c| format!("the nearest is {}: {}", c.id, c.title()));
        let found = near.into_iter().fold(found, Diagnostic::help);
        console.diagnostics(&[found], &Sources::new());
        return Err(Stop::Diagnosed);
    };
    if console.json() {
        let fields = [("code", code.id.into()), ("title", code.title().into()), ("page", code.page.into())];
        return console.out_json(&object(fields));
    }
    let body = code.page.split_once('\n').map_or("", |p| p.1).trim_start_matches('\n');
    console.out(&format!("{}: {}\n\n{}\n", code.id, code.title(), body.trim_end()))
}

/// The code with the nearest number; of two as near, the smaller.
fn nearest_code(topic: &str) -> Option<codes::Code> {
    let number = |id: &str| id.get(1..).and_then(|d| d.parse::<i64>().ok());
    let wanted = number(topic)?;
    codes::ALL
        .iter()
        .copied()
        .min_by_key(|c| number(c.id).map_or(i64::MAX, |n| n.saturating_sub(wanted).saturating_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_models() {
        assert!(is_code("E0310") && is_code("e0310") && is_code("E1"));
        assert!(!is_code("E") && !is_code("encoder") && !is_code("E0310.mw") && !is_code("é1"));
        assert_eq!(nearest_code("E0190").map(|c| c.id), Some("E0190"));
        assert_eq!(nearest_code("E0191").map(|c| c.id), Some("E0190"));
        assert_eq!(nearest_code("E9223372036854775808").map(|c| c.id), None);
    }
}
