//! One estimate of a project: with the stages that are asked for, what failures leave of it, and its JSON.

use crate::args::EstimateArgs;
use crate::output::console::Console;
use crate::output::json::{Object, object};
use crate::stop::Stop;
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::{Estimate, Goodput};
use meshwright_cost::machine::Machine;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_train::estimates::EstimateOptions;
use meshwright_train::estimates::stages::staged;
use meshwright_train::{Failure, Project};

/// A project with the stages that are asked for, where its layout can be compiled with them; else the pipeline is projected.
pub(super) fn with_stages(
    project: Project,
    mut sources: Sources,
    asked: EstimateOptions,
    console: &mut Console,
) -> (Project, Sources, EstimateOptions) {
    let foreign = matches!(asked.engine, EngineKind::Foreign(_));
    let Some(pipe) = asked.pipe.as_ref().filter(|p| p.stages > 1 && !foreign) else {
        return (project, sources, asked);
    };
    // A layout with stages, and more stages than layers, have errors of their own.
    let layers = project.program.layers().filter(|(_, n)| pipe.divided(*n).is_ok());
    if layers.is_none() || project.layout.pipeline.is_some() {
        return (project, sources, asked);
    }
    match staged(&project, &mut sources, pipe) {
        Ok(staged) => (staged, sources, EstimateOptions { pipe: None, ..asked }),
        Err(why) => {
            let why = why.map_or(String::new(), |d| format!(" ({}: {})", d.code.id, d.message));
            console.note(&format!(
                "the layout cannot be compiled with these stages{why}: time and memory are projected from its Plan without them"
            ));
            (project, sources, asked)
        }
    }
}

/// The part of the time that makes progress, where it is asked for.
pub(super) fn goodput(
    args: &EstimateArgs,
    machine: &Machine,
    estimate: &Estimate,
    console: &mut Console,
) -> Result<Option<Goodput>, Stop> {
    if !args.failures {
        return Ok(None);
    }
    let found = Goodput::of(machine, estimate.devices);
    found.map(Some).ok_or_else(|| {
        let wrong = Diagnostic::error(codes::E0531, format!("the file of {} has no table `failures`", machine.name));
        let help = wrong
            .help("add one to the file: [failures] with `hours` of a device between failures, `restart` and `checkpoint` in seconds");
        console.failed(Failure::Diagnostics(vec![help]), &Sources::new())
    })
}

/// An estimate as JSON has it, with the layout as it was given.
pub(super) fn fields(
    (project, layout): (&Project, Option<&str>),
    (machine, asked): (&str, &EstimateOptions),
    e: &Estimate,
    goodput: Option<Goodput>,
) -> Result<Object, Stop> {
    let of = serde_json::to_value(e).map_err(|e| Stop::Internal(Some(e.to_string())))?;
    let calibrated = asked.machine.calibration.is_some();
    let about = serde_json::json!({ "name": machine, "calibrated": calibrated, "error": e.error });
    let head = [
        ("version", 1.into()),
        ("model", project.program.model.clone().into()),
        ("layout", layout.unwrap_or_default().into()),
        ("mesh", project.layout.mesh.option().into()),
        ("machine", about),
        ("engine", asked.engine.name().into()),
    ];
    let fields = of.as_object().into_iter().flatten().map(|(k, v)| (k.as_str(), v.clone()));
    let goodput = goodput.map(|g| ("goodput", serde_json::json!(g)));
    Ok(object(head.into_iter().chain(fields).chain(goodput)))
}
