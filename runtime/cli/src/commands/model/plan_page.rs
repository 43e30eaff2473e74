//! `explain --html`: the plan as a page, of a program under one layout or under several.

use super::named_machine::of_machine_if_named;
use super::passes;
use crate::args::{DeviceChoice, ExplainArgs, PassArgs};
use crate::commands::project;
use crate::commands::report::said;
use crate::compare::{self, Variant};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::{band, bytes, counted};
use crate::replace::{self, writable};
use crate::stop::Stop;
use meshwright_core::Compiled;
use meshwright_core::explain::explain;
use meshwright_core::layout::Layout;
use meshwright_cost::estimate::Estimate;
use meshwright_diag::{Sources, has_errors};
use meshwright_plan::Plan;
use meshwright_report::plan_page::{self, EstimatedStep, LayoutView, PlannedLayout};
use meshwright_train::estimates::{EstimateOptions, estimated_plan, timeline_of};
use meshwright_train::project::line_of;
use meshwright_train::{Project, ProjectOptions};
use std::path::Path;

/// Writes the page.
pub(in crate::commands) fn write(args: &ExplainArgs, file: &Path, console: &mut Console) -> Result<(), Stop> {
    writable(file).map_err(|d| said(&d, console))?;
    let asked = args.project.options(&args.topic);
    let machine = of_machine_if_named(&args.machine, console)?.map(EstimateOptions::of);
    let given: Vec<Option<String>> = match args.project.layouts() {
        [] => vec![None],
        all => all.iter().cloned().map(Some).collect(),
    };
    let [first, others @ ..] = given.as_slice() else { return Err(Stop::Diagnosed) };
    let options = |layout: &Option<String>| ProjectOptions { layout: layout.clone(), ..asked.clone() };
    let (project, mut sources) = project::load(&options(first), console)?;
    let steps = passes::Steps::of(&project, args.program.program);
    let mut made = vec![compiled(&steps, project, &sources, console)?];
    for layout in others {
        let (placed, found) = made[0].0.with_layout(&options(layout), &mut sources);
        console.diagnostics(&found, &sources);
        let placed = placed.ok_or(Stop::Diagnosed)?;
        made.push(compiled(&steps, placed, &sources, console)?);
    }
    if !steps.trains && args.program.program.is_none() {
        let shown = passes::unasked(steps.shown.as_ref().map_or("", |step| step.program));
        console.note(&format!("the model has no `train` block: this is {shown}"));
    }
    // The launches are those whose times are drawn.
    let target = match (args.passes.device, &machine) {
        (None, Some(asked)) => asked.engine.target_on(&asked.machine),
        (kind, _) => passes::target(kind.unwrap_or(DeviceChoice::Cpu)),
    };
    let views = given.iter().zip(&made).map(|(name, (project, compiled))| {
        let name = name.as_deref().unwrap_or("no layout");
        let (mut view, variant) = view(name, compiled, &sources, &project.layout);
        if let (Some(asked), Some(step)) = (&machine, &steps.shown) {
            let found = estimated_plan(project, (step, &compiled.plan), asked);
            let found = found.map_err(|e| console.failed(e, &sources))?;
            super::note_assumed_rates(&asked.machine.name, &found.assumed_rates, console);
            view = view.estimated(drawn((project, &sources), &compiled.plan, asked, &found, console)?);
        }
        let device = passes::device_plan((&compiled.plan, 0, target), console)?;
        Ok((view.launched(&compiled.plan, &device), variant))
    });
    let views = views.collect::<Result<Vec<_>, Stop>>()?;
    let (views, variants): (Vec<LayoutView>, Vec<Variant>) = views.into_iter().unzip();
    let plan = &made[0].1.plan;
    let differences = serde_json::to_value(compare::differences(&variants));
    let differences = differences.map_err(|e| Stop::Internal(Some(e.to_string())))?;
    let title = format!("The plan of {}", plan.model);
    let page = plan_page::html(&title, plan_page::data(&plan.model, &plan.program, &views, differences));
    replace::write(file, page.as_bytes()).map_err(|d| said(&d, console))?;
    let (size, layouts) = (page.len() as u64, views.len() as u64);
    if console.json() {
        let fields =
            [("file", file.to_string_lossy().into()), ("bytes", size.into()), ("layouts", layouts.into())];
        return console.out_json(&object(fields));
    }
    console.out(&format!("wrote {}: {}, {}\n", file.display(), counted(layouts, "layout"), bytes(size)))
}

/// Most kernels and collectives of a timeline that a page draws.
const MOST_BARS: usize = 20_000;

/// Writes the page of a plan with its estimate.
pub(in crate::commands) fn estimated(
    name: &str,
    (project, sources): (&Project, &Sources),
    asked: &EstimateOptions,
    estimate: &Estimate,
    file: &Path,
    console: &mut Console,
) -> Result<(), Stop> {
    writable(file).map_err(|d| said(&d, console))?;
    let steps = passes::Steps::of(project, None);
    let (project, compiled) = compiled(&steps, project.clone(), sources, console)?;
    let plan = &compiled.plan;
    let step = drawn((&project, sources), plan, asked, estimate, console)?;
    let view = view(name, &compiled, sources, &project.layout).0.estimated(step);
    let title = format!("The plan of {}", plan.model);
    let data = plan_page::data(&plan.model, &plan.program, &[view], serde_json::json!([]));
    replace::write(file, plan_page::html(&title, data).as_bytes()).map_err(|d| said(&d, console))
}

/// An estimated step as it is drawn.
fn drawn(
    (project, sources): (&Project, &Sources),
    plan: &Plan,
    asked: &EstimateOptions,
    estimate: &Estimate,
    console: &mut Console,
) -> Result<EstimatedStep, Stop> {
    let events = timeline_of(project, plan, asked).map_err(|e| console.failed(e, sources))?;
    let bars = events.iter().take(MOST_BARS).map(|e| (e.step, u8::from(e.communicates), e.start, e.end));
    Ok(EstimatedStep {
        machine: asked.machine.name.clone(),
        seconds: estimate.seconds,
        band: band(&asked.machine, estimate.error),
        waited: estimate.breakdown.exposed_seconds(),
        memory: (estimate.memory.device_bytes, asked.machine.device.memory as u64),
        collectives: estimate.collectives.iter().map(|c| (c.step, c.seconds, c.exposed_seconds)).collect(),
        bars: bars.collect(),
        left_out: events.len().saturating_sub(MOST_BARS),
    })
}

/// The program for the layout of a project; what there is to say of it is said.
fn compiled(
    steps: &passes::Steps,
    project: Project,
    sources: &Sources,
    console: &mut Console,
) -> Result<(Project, Compiled), Stop> {
    let nothing = PassArgs::default();
    let (compiled, found) = steps.compiled(&project, &nothing, sources, &mut Vec::new(), console)?;
    console.diagnostics(&found, sources);
    match compiled {
        Some(compiled) if !has_errors(&found) => Ok((project, compiled)),
        _ => Err(Stop::Diagnosed),
    }
}

fn view(name: &str, compiled: &Compiled, sources: &Sources, layout: &Layout) -> (LayoutView, Variant) {
    let report = explain(compiled, &|span| line_of(sources, span));
    let mesh = compiled.plan.mesh.option();
    let view = LayoutView::of(&PlannedLayout { name, compiled, report: &report, sources, layout });
    (view, Variant::of(Some(name.into()), mesh, &[], &report))
}
