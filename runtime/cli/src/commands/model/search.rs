//! `search`: the layout that is fastest on a machine, with a certificate.

use super::estimate::{band, of_machine};
use super::search_bench::{CandidateBench, placed};
use crate::args::{LayoutSearchArgs, Orders};
use crate::commands::project;
use crate::output::console::Console;
use crate::output::table::{Align, Table};
use crate::output::text::{bytes, counted, percent, short_band, short_seconds as seconds, thousands};
use crate::replace::{writable, write};
use crate::stop::Stop;
use meshwright_core::{StepGraph, model_flops_wide, training_step};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::family_error;
use meshwright_cost::machine::Machine;
use meshwright_diag::{Diagnostic, FileId, Sources, codes, has_errors};
use meshwright_files::text_file::text_of_at_most;
use meshwright_runs::catalog::{LAYOUTS, meant};
use meshwright_search::best_first::{FoundLayout, Limits, Progress, Search, SearchOutcome};
use meshwright_search::compiled::{SharedSteps, Subject};
use meshwright_search::report::{SampleReport, SearchReport, SearchRow};
use meshwright_search::space::{FixedRules, SearchChoices, Space};
use meshwright_sorted::SortedSet;
use meshwright_syntax::format_layout;
use meshwright_train::estimates::{EstimateOptions, estimated};
use meshwright_train::{Failure, Project, ProjectOptions, lines_that_fit_device};
use std::path::Path;
use std::time::Instant;

/// Seconds between lines about a search that takes long.
const TELL: f64 = 10.0;
/// Characters of a line of rules, beside its indentation.
const WIDTH: usize = 90;

/// Runs the command.
pub(crate) fn run(args: &LayoutSearchArgs, console: &mut Console) -> Result<(), Stop> {
    if args.time_limit.is_nan() || args.time_limit <= 0.0 {
        return Err(Stop::Usage("`--time-limit` is a number of seconds above 0".into()));
    }
    if let Some(Err(wrong)) = args.write.as_deref().map(writable) {
        return Err(console.failed(Failure::Diagnostics(vec![*wrong]), &Sources::new()));
    }
    let (name, machine) = of_machine(&args.machine, console)?;
    let options =
        ProjectOptions { model: args.model.clone(), dims: args.dims.clone(), ..args.settings.options() };
    let (project, mut sources) = project::load(&options, console)?;
    let Some(step) = training_step(&project.program) else {
        let d =
            Diagnostic::error(codes::E0516, "there is no `train` block, so no training step to search for")
                .help("add a `train` block to the model file");
        return Err(console.failed(Failure::Diagnostics(vec![d]), &sources));
    };
    let choices = choices(args, &project, &options, &mut sources, console)?;
    if let Some(d) = no_stages(&choices, &project).filter(|_| choices.pipes) {
        return Err(console.failed(Failure::Diagnostics(vec![d]), &sources));
    }
    let batch = project.batch();
    let subject = Subject {
        program: &project.program,
        step: &step,
        machine: &machine,
        engine: EngineKind::of(&machine),
        model_flops: model_flops_wide(&step),
        examples: batch,
        tokens: project.tokens().map(|each| each * batch),
        shared: SharedSteps::default(),
    };
    let wrong = |e: String| Failure::Diagnostics(vec![Diagnostic::error(codes::E0531, e)]);
    let begin = Instant::now();
    let found = searched(args, &subject, choices, console);
    let (space, outcome) = found.map_err(|e| console.failed(wrong(e), &sources))?;
    let of = (&space, &subject, name.as_str());
    let mut report = SearchReport::new(of, &outcome, (usize::from(args.top), args.pareto));
    report.seconds = begin.elapsed().as_secs_f64();
    let shown: Vec<&FoundLayout> = report.rows.iter().map(|r| &outcome.found[r.rank - 1]).collect();
    if let Some(best) = outcome.found.first() {
        // Searches leave verifiers out; what is recommended passes them all.
        let _ = subject.plan(&best.written, true);
    }
    if let Some(count) = args.measure {
        let mut bench = CandidateBench {
            args,
            project: &project,
            options: &options,
            sources: &mut sources,
            said: SortedSet::new(),
        };
        let runs = shown.into_iter().zip(&report.rows).filter(|(_, row)| row.runnable).map(|(f, _)| f);
        let runs: Vec<&FoundLayout> = runs.take(count.into()).collect();
        let of = bench.measured(&runs.iter().map(|f| &f.written).collect::<Vec<_>>(), console)?;
        let rows = report.rows.iter_mut().filter(|row| row.runnable);
        rows.zip(of).for_each(|(row, ms)| row.measured_ms = Some(ms));
        if let (Some(count), Some(first)) = (args.sample, runs.first()) {
            report.sample = Some(bench.sampled((&space, &subject), (count, &first.written), console)?);
        }
    }
    if let Some(nearest) = &mut report.nearest {
        let of = outcome.nearest.as_ref();
        nearest.help = of.and_then(|n| help(&project, &options, &mut sources, (&subject, &step), n));
    }
    if console.json() {
        let asked =
            EstimateOptions { machine: machine.clone(), engine: subject.engine, pipe: None, slowest: 1.0 };
        with_lines((&project, &options, &mut sources), &asked, &outcome, &mut report, console)?;
        console.out_json(&report)?;
    } else {
        console.out(&text(&project, &report, &machine, args))?;
    }
    if let (Some(path), Some(best)) = (&args.write, outcome.found.first()) {
        written(path, best, &report, &machine, console)?;
    }
    if outcome.found.is_empty() { Err(none(&report, &machine, args, console)) } else { Ok(()) }
}

/// Gives the collectives of rows the lines of the model and of the layout, which a search does not look up.
fn with_lines(
    (project, options, sources): (&Project, &ProjectOptions, &mut Sources),
    asked: &EstimateOptions,
    outcome: &SearchOutcome,
    report: &mut SearchReport,
    console: &mut Console,
) -> Result<(), Stop> {
    for row in report.rows.iter_mut().filter(|row| row.runnable) {
        let of = placed(project, options, sources, &outcome.found[row.rank - 1].written);
        let own = of.map(|placed| estimated(&placed, sources, asked)).transpose();
        let own = own.map_err(|e| console.failed(e, sources))?;
        row.estimate.collectives = own.map_or(vec![], |e| e.collectives);
    }
    Ok(())
}

/// Searches, and says from time to time how far it is, and in the end which rates it has assumed.
fn searched(
    args: &LayoutSearchArgs,
    subject: &Subject<'_>,
    choices: SearchChoices,
    console: &mut Console,
) -> Result<(Space, SearchOutcome), String> {
    let begin = Instant::now();
    let work = subject.work(&choices).map_err(|e| e.to_string())?;
    let space = Space::of(subject.program, subject.step, &work, choices);
    let mut next = TELL;
    let mut stop = |p: Progress| {
        let passed = begin.elapsed().as_secs_f64();
        if passed >= next {
            next += TELL;
            let best =
                p.best.map_or_else(|| "nothing that fits yet".into(), |s| format!("best {}", seconds(s)));
            console.note(&format!(
                "{passed:.0} s: {} compiled, {best}; nothing is below {}",
                counted(p.compiled, "program"),
                seconds(p.bound)
            ));
        }
        passed >= args.time_limit
    };
    let cores =
        args.cores.get().unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let outcome = Search::new(&space, &work, subject).run(&mut Limits { cores, stop: &mut stop });
    let outcome = outcome.map_err(|e| e.to_string())?;
    let assumed = outcome.found.iter().flat_map(|f| &f.estimate.assumed_rates);
    super::note_assumed_rates(&subject.machine.name, assumed, console);
    Ok((space, outcome))
}

/// What the command line fixes.
fn choices(
    args: &LayoutSearchArgs,
    project: &Project,
    options: &ProjectOptions,
    sources: &mut Sources,
    console: &mut Console,
) -> Result<SearchChoices, Stop> {
    let kept = match &args.layout {
        Some(layout) => kept(layout, project, options, sources, console)?,
        None => FixedRules::default(),
    };
    let dims = &project.program.graph.dims;
    if let Some(unknown) = args.gather.iter().find(|d| dims.find(d).is_none()) {
        return Err(Stop::Usage(format!("--gather: `{}` has no dim `{unknown}`", project.program.model)));
    }
    let is_name = |n: &String| {
        n.starts_with(|c: char| c.is_ascii_alphabetic())
            && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some(wrong) = args.axes.iter().find(|n| !is_name(n)) {
        return Err(Stop::Usage(format!("--axes: `{wrong}` is not a name of an axis, such as data")));
    }
    if let Some(twice) = args.axes.iter().enumerate().find(|(i, n)| args.axes[..*i].contains(n)) {
        return Err(Stop::Usage(format!("--axes: `{}` is there twice", twice.1)));
    }
    if !args.axes.is_empty() && !args.axes.starts_with(&kept.axes) {
        let first = kept.axes.join(",");
        return Err(Stop::Usage(format!("--axes begins with those that --layout names: {first}")));
    }
    Ok(SearchChoices {
        devices: args.devices as usize,
        axes: args.axes.clone(),
        orders: args.orders == Orders::All,
        kept,
        gathers: args.gather.clone(),
        pipes: args.pipe.is_some(),
    })
}

/// The error of a search for pipelines that has no loop to divide into stages.
fn no_stages(choices: &SearchChoices, project: &Project) -> Option<Diagnostic> {
    let Some((layers, _)) = project.program.layers() else {
        let d = Diagnostic::error(codes::E0516, "a pipeline needs a model with one `repeat` over layers");
        return Some(d.help("leave `--pipe` out"));
    };
    let name = project.program.graph.dims.name(layers);
    choices.kept.dims.contains(name).then(|| {
        let text =
            format!("`--pipe` divides `{name}` into stages, and a line of `--layout` splits it already");
        Diagnostic::error(codes::E0516, text).help(format!("leave out `--pipe`, or the rule for `{name}`"))
    })
}

/// The lines that all candidates keep, with all there is to say about them.
fn kept(
    layout: &str,
    project: &Project,
    options: &ProjectOptions,
    sources: &mut Sources,
    console: &mut Console,
) -> Result<FixedRules, Stop> {
    const MAX_BYTES: usize = 1 << 20;
    let text = match meant(LAYOUTS, layout) {
        Some(shipped) => shipped.text.to_string(),
        None if !layout.contains("->") && Path::new(layout).exists() => {
            text_of_at_most(Path::new(layout), MAX_BYTES).unwrap_or_default()
        }
        None => layout.to_string(),
    };
    let kept = FixedRules::of(&text, &project.program);
    let axes = kept.as_ref().map(|k| k.axes.iter().map(|a| format!("{a}=2")).collect::<Vec<_>>().join(","));
    let mesh = axes.filter(|a| !a.is_empty());
    let checked = ProjectOptions { layout: Some(layout.into()), mesh, ..options.clone() };
    let (placed, found) = project.with_layout(&checked, sources);
    let failed = placed.is_none() || has_errors(&found);
    match kept.filter(|_| !failed) {
        Some(kept) => {
            console.diagnostics(&found, sources);
            Ok(kept)
        }
        None => Err(console.failed(Failure::Diagnostics(found), sources)),
    }
}

/// Lines that would make a candidate fit.
fn help(
    project: &Project,
    options: &ProjectOptions,
    sources: &mut Sources,
    (subject, step): (&Subject<'_>, &StepGraph),
    of: &FoundLayout,
) -> Option<String> {
    let placed = placed(project, options, sources, &of.written)?;
    let plan = subject.plan(&of.written, false).ok()?;
    let memory = (subject.machine.device.memory as u64, subject.engine.target_on(subject.machine));
    let (lines, _) = lines_that_fit_device((&placed, sources), (step, &plan), memory)?;
    Some(lines.join("; "))
}

fn written(
    path: &Path,
    best: &FoundLayout,
    report: &SearchReport,
    machine: &Machine,
    console: &mut Console,
) -> Result<(), Stop> {
    if report.rows.first().is_some_and(|row| !row.runnable) {
        let (mesh, rules) = (&best.written.mesh, best.written.rules());
        let d = Diagnostic::error(
            codes::E0315,
            "the best candidate cannot be compiled with its stages: nothing is written",
        )
        .note(format!("its mesh is {mesh} and its rules are `{rules}`"))
        .help("leave `--pipe` out: the best without stages is written");
        return Err(console.failed(Failure::Diagnostics(vec![d]), &Sources::new()));
    }
    let e = &best.estimate;
    let heading = [
        format!(
            "For {} of {}: {} a step {}.",
            counted(e.devices as u64, "device"),
            machine.name,
            seconds(e.seconds),
            band(machine, e.error)
        ),
        format!("Found by `meshwright search`: {}.", certificate(report)),
    ];
    let text = best.written.file(&heading);
    let text = format_layout(FileId(0), &text).0.unwrap_or(text);
    write(path, text.as_bytes())
        .map_err(|d| console.failed(Failure::Diagnostics(vec![*d]), &Sources::new()))?;
    console.note(&format!("wrote {}", path.display()));
    Ok(())
}

fn certificate(report: &SearchReport) -> String {
    match (report.gap, report.bound) {
        (Some(0.0), _) if report.proven => "proven: no candidate is faster".into(),
        (Some(gap), _) if report.proven => {
            format!("proven: no candidate is more than {} faster, and none so fast is simpler", percent(gap))
        }
        (Some(gap), Some(bound)) => {
            format!(
                "the time was over: no candidate is faster than {}, a gap of {}",
                seconds(bound),
                percent(gap)
            )
        }
        _ => "the time was over before one was found".into(),
    }
}

/// The error where nothing was found.
fn none(report: &SearchReport, machine: &Machine, args: &LayoutSearchArgs, console: &mut Console) -> Stop {
    let on = format!("{} of {}", counted(u64::from(args.devices), "device"), machine.name);
    let (model, r) = (&args.model, &report.rejected);
    let missed = report.nearest.as_ref().map(|n| {
        let (layout, mesh) = (if n.layout.is_empty() { "no rules" } else { &n.layout }, &n.mesh);
        let (needs, more) = (bytes(n.peak_bytes), bytes(n.missing_bytes));
        format!("nearest: `{layout}` on {mesh} needs {needs}, {more} more than there are")
    });
    let fewer = "take more devices, or a smaller batch: `--devices`, `--dim`";
    let fits = report.nearest.as_ref().and_then(|n| n.help.as_ref());
    let fits = fits.map_or(fewer.to_string(), |lines| format!("it fits with `{lines}`"));
    let d = match missed {
        _ if !report.proven => {
            let said = format!("the time was over before a layout of {model} was found that fits on {on}");
            let below = report.bound.map(|s| format!("no candidate is faster than {}", seconds(s)));
            let d =
                missed.into_iter().chain(below).fold(Diagnostic::error(codes::E0531, said), Diagnostic::note);
            d.help(format!("give it more time: `--time-limit {}`", (4.0 * args.time_limit).ceil()))
        }
        Some(missed) => {
            let said = format!("no layout of {model} fits on {on}");
            Diagnostic::error(codes::E0401, said).note(missed).help(fits)
        }
        None if report.space.candidates == 0 => {
            let said = format!("no axes of a mesh of {on} divide what {model} computes");
            let d = Diagnostic::error(codes::E0531, said)
                .note("no dim has as many elements as an axis would have devices");
            d.help("take a number of devices with small factors: `--devices`")
        }
        None => {
            let said = format!("no layout of {model} on {on} is legal");
            let (gather, conflict) = (thousands(r.gather), thousands(r.conflict));
            let why = format!("{gather} need a gather, {conflict} have rules that do not go together");
            let d = Diagnostic::error(codes::E0531, said).note(why);
            d.help("permit a gather with `--gather DIM`, or keep fewer lines in `--layout`")
        }
    };
    console.failed(Failure::Diagnostics(vec![d]), &Sources::new())
}

fn text(project: &Project, report: &SearchReport, machine: &Machine, args: &LayoutSearchArgs) -> String {
    let s = &report.space;
    let mut out = format!(
        "{} on {} of {}\n\n",
        project.program.model,
        counted(u64::from(args.devices), "device"),
        machine.name
    );
    out += &format!(
        "space     {} candidates: {}, each of at most {}; {} for an axis\n",
        thousands(s.candidates),
        counted(s.meshes.len() as u64, "mesh").replace("meshs", "meshes"),
        counted(s.axes as u64, "axis").replace("axiss", "axes"),
        counted(s.sets.len() as u64, "set of dims").replace("set of dimss", "sets of dims"),
    );
    if s.left_out > 0 {
        let sets = counted(s.left_out as u64, "set of dims").replace("set of dimss", "sets of dims");
        out += &format!("left out  {sets}, those of the fewest dims: the certificate says nothing of them\n");
    }
    let r = &report.rejected;
    out += &format!(
        "searched  {} compiled, {} estimated, {:.1} s\n",
        counted(report.compiled, "program"),
        thousands(report.estimated),
        report.seconds
    );
    let reasons = [
        (r.gather, "need a gather"),
        (r.conflict, "conflict"),
        (r.memory, "do not fit"),
        (r.bound, "are slower by their bounds"),
    ];
    let reasons: Vec<String> =
        reasons.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{} {why}", thousands(*n))).collect();
    if !reasons.is_empty() {
        out += &format!("rejected  {}\n", reasons.join(", "));
    }
    let Some(best) = report.rows.first() else { return out };
    out += &format!("best      {}\n", certificate(report));
    out +=
        &format!("          {} {}\n\n", seconds(best.estimate.seconds), band(machine, best.estimate.error));
    out += &rows_text(&report.rows, machine);
    out + &report.sample.as_ref().map_or_else(String::new, sample_text)
}

/// What was drawn, and how near the first is to the fastest of it.
fn sample_text(s: &SampleReport) -> String {
    let mut out = format!(
        "\nsample    {} drawn, {} refused, {} timed\n",
        counted(s.drawn, "candidate"),
        thousands(s.refused),
        thousands(s.timed)
    );
    if let Some(tau) = s.tau {
        out += &format!("          order of estimates and times: {tau:.2} (Kendall's tau)\n");
    }
    match &s.fastest {
        Some(f) if f.ratio < 1.0 => {
            let rules = if f.layout.is_empty() { "no rules" } else { &f.layout };
            let (ms, less) = (f.measured_ms, percent(1.0 - f.ratio));
            out += &format!(
                "          the fastest takes {ms:.2} ms on {}, {less} less than the first:\n",
                f.mesh
            );
            out + &folded(rules, "; ")
        }
        Some(f) => {
            let more = percent(f.ratio - 1.0);
            out + &format!("          none is faster than the first; the fastest takes {more} longer\n")
        }
        None => out,
    }
}

/// The candidates: what each takes in a line of a table, and below it its rules and what it loses.
fn rows_text(rows: &[SearchRow], machine: &Machine) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[right, right, left, right, right, left]);
    let measured = rows.iter().any(|r| r.measured_ms.is_some());
    let engine = EngineKind::of(machine);
    let error = |family: &str| family_error(machine, &engine, family);
    table.titles(["", "step", "", if measured { "measured" } else { "" }, "memory", "mesh"]);
    for row in rows {
        table.row([
            row.rank.to_string(),
            seconds(row.estimate.seconds),
            short_band(row.machine.error),
            row.measured_ms.map_or_else(String::new, |ms| format!("{ms:.2} ms")),
            bytes(row.estimate.memory.device_bytes),
            if row.mesh.is_empty() { "one device".into() } else { row.mesh.replace(',', ", ") },
        ]);
    }
    let table = table.render();
    let mut lines = table.lines();
    let mut out = format!("{}\n", lines.next().unwrap_or_default());
    for (line, row) in lines.zip(rows) {
        let rules = if row.layout.is_empty() { "no rules".into() } else { row.layout.clone() };
        out += &format!("{line}\n{}", folded(&format!("{rules}{}", refused(row)), "; "));
        let loss = rows.first().and_then(|best| loses(row, best, &error));
        out += &loss.map_or(String::new(), |l| folded(&l, ", "));
    }
    out
}

/// Items in indented lines that a terminal shows whole.
fn folded(text: &str, between: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for item in text.split(between) {
        match lines.last_mut() {
            Some(line) if line.len() + between.len() + item.len() <= WIDTH => {
                *line += &format!("{between}{item}")
            }
            Some(line) => {
                *line += between.trim_end();
                lines.push(item.to_string());
            }
            None => lines.push(item.to_string()),
        }
    }
    lines.iter().map(|line| format!("       {line}\n")).collect()
}

/// Why a row does not run, in brackets.
fn refused(row: &SearchRow) -> &'static str {
    if row.runnable { "" } else { " (refused)" }
}

/// What a row loses against the first, each part with the band of its family, and the sum of these:
/// `1.300 +- 0.195 ms slower: update +1.300 +- 15 %`. None for the first.
fn loses(row: &SearchRow, best: &SearchRow, error: &dyn Fn(&str) -> f64) -> Option<String> {
    let by = 1e3 * (row.estimate.seconds - best.estimate.seconds);
    if row.rank == best.rank {
        return None;
    }
    let parts = row.estimate.breakdown.parts().into_iter().zip(best.estimate.breakdown.parts());
    let mut all: Vec<(&str, f64, f64)> =
        parts.map(|((name, a, family), (_, b, _))| (name, 1e3 * (a - b), error(family))).collect();
    let off: f64 = all.iter().map(|(_, ms, error)| ms.abs() * error).sum();
    all.retain(|(_, ms, _)| ms.abs() >= 0.05 * by.abs() && ms.abs() >= 0.0005);
    all.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let all = all.iter();
    let all: Vec<String> = all
        .map(|(name, ms, error)| format!("{} {ms:+.3} {}", name.replace('_', "-"), short_band(*error)))
        .collect();
    let how = match by {
        by if by.abs() < 0.0005 => "as fast".to_string(),
        by => format!("{:.3} +- {off:.3} ms {}", by.abs(), if by > 0.0 { "slower" } else { "faster" }),
    };
    Some(if all.is_empty() { how } else { format!("{how}: {}", all.join(", ")) })
}
