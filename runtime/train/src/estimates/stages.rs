//! A project with the stages of a pipeline that is asked for in its layout.

use crate::project::Project;
use meshwright_core::training_step;
use meshwright_cost::pipe::Pipe;
use meshwright_diag::{Diagnostic, Severity, Sources};

/// A project whose layout has these stages, if it can be compiled with them: its Plan is then estimated, and nothing has to be
/// projected. The axis of the stages is the outermost one of its mesh. Texts are added to `sources`.
///
/// # Errors
/// Why it cannot, which may be no error of the layout: `None` where the model has no single loop of layers, or is not trained.
pub fn staged(
    project: &Project,
    sources: &mut Sources,
    pipe: &Pipe,
) -> Result<Project, Option<Box<Diagnostic>>> {
    let first =
        |found: Vec<Diagnostic>| found.into_iter().find(|d| d.severity == Severity::Error).map(Box::new);
    let (dim, layers) = project.program.layers().ok_or(None)?;
    let step = training_step(&project.program).ok_or(None)?;
    let mesh = &project.layout.mesh;
    let names: Vec<String> = mesh.axes.iter().map(|a| a.name.clone()).collect();
    let axis = Pipe::axis(&names);
    let rule = format!("{} -> {axis}", project.program.graph.dims.name(dim));
    let lines: Vec<String> = std::iter::once(rule).chain(pipe.lines(layers)).collect();
    let own = std::iter::once(format!("{axis}={}", pipe.stages))
        .chain(Some(mesh.option()).filter(|m| !m.is_empty()));
    let mesh = own.collect::<Vec<_>>().join(",");
    let staged = project.with_more_rules_on(&mesh, &lines.join("\n"), sources).map_err(first)?;
    match staged.compile(&step, sources) {
        (Some(_), found) if found.iter().all(|d| d.severity != Severity::Error) => Ok(staged),
        (_, found) => Err(first(found)),
    }
}
