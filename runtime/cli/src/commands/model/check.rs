//! `check`: whether a model and a layout make a program.

use super::{fix, passes};
use crate::args::CheckArgs;
use crate::commands::project;
use crate::output::console::Console;
use crate::output::explain_table::alternative;
use crate::output::json::object;
use crate::output::text::{bytes, counted, thousands};
use crate::stop::Stop;
use meshwright_core::explain::alternatives;
use meshwright_diag::has_errors;
use meshwright_plan::Plan;
use meshwright_train::{Failure, Project, ProjectOptions, fits_device};
use std::time::Instant;

/// Runs the command.
pub(crate) fn run(args: &CheckArgs, console: &mut Console) -> Result<(), Stop> {
    if args.passes.device.is_some() && args.passes.emit.is_none() && args.memory.bytes().is_none() {
        return Err(Stop::Usage(
            "`--device` is for `--memory`, `--emit device` and `--emit burn`; `meshwright explain MODEL --device KIND` has totals".into(),
        ));
    }
    if args.project.layouts().len() > 1 {
        return layouts(args, console);
    }
    if args.unsafe_fixes && !args.fix && !args.diff {
        return Err(Stop::Usage("`--unsafe-fixes` goes with `--fix` or `--diff`".into()));
    }
    let mut options = args.project.options();
    let mut unwritten = false;
    if args.fix || args.diff {
        let left = fix::run(options, (args.diff, args.unsafe_fixes), console)?;
        (options, unwritten) = (left.options, left.unwritten);
    }
    let fitting = |made: Option<passes::Made>, console: &mut Console| {
        made.as_ref().map_or(Ok(()), |m| m.fits(args.memory, args.passes.device, console)).map(|()| made)
    };
    let made = passes::make(&options, None, &args.passes, console).and_then(|m| fitting(m, console));
    let made = match made {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(()),
        Err(Stop::Diagnosed) if console.json() && args.passes.emit.is_none() => {
            console.out_json(&object([("ok", false.into())]))?;
            return Err(Stop::Diagnosed);
        }
        Err(other) => return Err(other),
    };
    if unwritten {
        // What was checked is not what stands where it was read; whoever asks for a diff wants nothing behind it.
        if console.json() {
            console.out_json(&object([("ok", false.into())]))?;
        } else if args.diff {
            console
                .note("the texts have mistakes that the diff mends: `--fix` in place of `--diff` writes it");
        }
        return Err(Stop::Diagnosed);
    }
    if args.diff && !console.json() {
        return Ok(());
    }
    if let Some(memory) = args.memory.bytes().filter(|_| made.trains && !console.json()) {
        save_bytes(&made, memory, console);
    }
    report(&made.project, &made.compiled.plan, made.trains, None, console)
}

/// Notes the lines with which fewer bytes would move, where a device has the memory for what they keep.
fn save_bytes(made: &passes::Made, memory: u64, console: &mut Console) {
    let s = &made.compiled.plan.summary;
    let found = alternatives(&made.project.layout, &made.compiled, |layout| made.under(layout));
    for a in found.iter().filter(|a| a.collective_bytes < s.collective_bytes && a.peak_bytes <= memory) {
        console.note(&alternative(a, s.collective_bytes, s.peak_bytes));
    }
}

/// Checks one model under several layouts: it is resolved once.
fn layouts(args: &CheckArgs, console: &mut Console) -> Result<(), Stop> {
    if args.fix || args.diff || args.passes.emit.is_some() {
        return Err(Stop::Usage("`--fix`, `--diff` and `--emit` take one `--layout`".into()));
    }
    let asked = args.project.options();
    // Nothing is split, so that what is said of the model is said once.
    let alone = ProjectOptions { layout: None, mesh: None, expect_devices: None, ..asked.clone() };
    let begin = Instant::now();
    let (project, mut sources) = project::load(&alone, console)?;
    let mut times = vec![("resolve", begin.elapsed())];
    let begin = Instant::now();
    let steps = passes::Steps::of(&project, None);
    times.push(("step", begin.elapsed()));
    let target = passes::target(args.passes.device.unwrap_or_default());
    let mut failed = false;
    for layout in args.project.layouts() {
        let options = ProjectOptions { layout: Some(layout.clone()), ..asked.clone() };
        let (project, mut found) = project.with_layout(&options, &mut sources);
        let compiled = match &project {
            Some(p) => {
                let (compiled, more) = steps.compiled(p, &args.passes, &sources, &mut times, console)?;
                found.extend(more);
                compiled
            }
            None => None,
        };
        if let (Some(p), Some(step), Some(c)) = (&project, &steps.shown, &compiled)
            && let Some(memory) = args.memory.bytes().filter(|_| !has_errors(&found))
            && let Err(Failure::Diagnostics(short)) =
                fits_device((p, &sources), (step, &c.plan), (memory, target))
        {
            found.extend(short);
        }
        console.diagnostics(&found, &sources);
        match project.zip(compiled).filter(|_| !has_errors(&found)) {
            Some((p, c)) => report(&p, &c.plan, steps.trains, Some(layout.as_str()), console)?,
            None => {
                failed = true;
                if console.json() {
                    console.out_json(&object([("ok", false.into()), ("layout", layout.clone().into())]))?;
                } else {
                    console.out(&format!("failed: {layout}\n"))?;
                }
            }
        }
    }
    if args.passes.time_passes {
        passes::say_times(&times, console);
    }
    if failed { Err(Stop::Diagnosed) } else { Ok(()) }
}

/// A line on a model that is right; it names the layout where there are several.
fn report(
    project: &Project,
    plan: &Plan,
    trains: bool,
    layout: Option<&str>,
    console: &mut Console,
) -> Result<(), Stop> {
    let program = &project.program;
    let elements = program.parameter_elements();
    let collectives: u64 = plan.communication().iter().map(|t| t.count).sum();
    let s = &plan.summary;
    if console.json() {
        let named = layout.map(|l| ("layout", l.into()));
        let said = [
            ("ok", true.into()),
            ("model", program.model.clone().into()),
            ("program", plan.program.clone().into()),
            ("parameters", program.params.len().into()),
            ("elements", elements.into()),
            ("devices", plan.mesh.devices().into()),
            ("collectives", collectives.into()),
            ("collective_bytes", s.collective_bytes.into()),
            ("peak_bytes", s.peak_bytes.into()),
            ("plan", plan.hash().into()),
        ];
        return console.out_json(&object(said.into_iter().chain(named)));
    }
    let of = match trains {
        true => "a step".into(),
        false => format!("{}; it has no `train` block", passes::unasked(&plan.program)),
    };
    let named = layout.map_or(String::new(), |l| format!("{l}: "));
    console.out(&format!(
        "ok: {named}{}, {} elements, mesh {}, {} in {} and a peak of {} per device for {of}\n",
        counted(program.params.len() as u64, "parameter"),
        thousands(elements as u64),
        project::mesh(project),
        bytes(s.collective_bytes),
        counted(collectives, "collective"),
        bytes(s.peak_bytes),
    ))
}
