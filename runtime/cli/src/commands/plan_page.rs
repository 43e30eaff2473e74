//! `explain --html`: the plan as a page, of a program under one layout or under several.

use super::report::said;
use super::{passes, project};
use crate::args::{ExplainArgs, PassArgs};
use crate::compare::{self, Variant};
use crate::console::Console;
use crate::json::object;
use crate::replace::{self, writable};
use crate::stop::Stop;
use crate::text::{bytes, counted};
use meshwright_core::Compiled;
use meshwright_core::explain::explain;
use meshwright_core::layout::Layout;
use meshwright_diag::{Sources, has_errors};
use meshwright_report::plan_page::{self, LayoutView, PlannedLayout};
use meshwright_train::project::line_of;
use meshwright_train::{Project, ProjectOptions};
use std::path::Path;

/// Writes the page.
pub(super) fn write(args: &ExplainArgs, file: &Path, console: &mut Console) -> Result<(), Stop> {
    writable(file).map_err(|d| said(&d, console))?;
    let asked = args.project.options(&args.topic);
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
        console.note("the model has no `train` block: this is an evaluation step");
    }
    let views = given.iter().zip(&made).map(|(name, (project, compiled))| {
        let name = name.as_deref().unwrap_or("no layout");
        view(name, compiled, &sources, &project.layout)
    });
    let (views, variants): (Vec<LayoutView>, Vec<Variant>) = views.unzip();
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
