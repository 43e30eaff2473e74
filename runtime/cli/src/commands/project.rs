//! What every command on a model begins with: reading and checking it, and the places where data is sought.

use crate::args::DevicesArgs;
use crate::launch;
use crate::output::console::Console;
use crate::stop::Stop;
use crate::surroundings;
use meshwright_data::roots;
use meshwright_diag::{Diagnostic, Sources, has_errors};
use meshwright_train::{Devices, Failure, Loaded, Project, ProjectOptions, Recorded, agree_on_result};
use std::path::{Path, PathBuf};

/// Reads a model and its layout, and says what there is to say about them.
pub(super) fn load(options: &ProjectOptions, console: &mut Console) -> Result<(Project, Sources), Stop> {
    let Loaded { project, sources, diagnostics, .. } = Project::load(options);
    let read = match project {
        Some(project) => Ok((project, diagnostics)),
        None => Err(Failure::Diagnostics(diagnostics)),
    };
    match agree_on_result(console.processes(), "the model and the layout", read) {
        Ok((project, found)) => {
            if console.leads() {
                console.diagnostics(&found, &sources);
            }
            Ok((project, sources))
        }
        Err(failure) => Err(console.failed(failure, &sources)),
    }
}

/// Name of what all processes must be asked for.
pub(in crate::commands) const COMMAND: &str = "the command";

/// Reads a model and its layout for devices that run it, which the mesh must fit.
pub(super) fn load_for(
    (args, command): (&DevicesArgs, &str),
    options: &ProjectOptions,
    console: &mut Console,
) -> Result<(Project, Sources, Devices), Stop> {
    let devices = launch::devices(args, &[(COMMAND, command.into())], console)?;
    let (project, sources) = load(options, console)?;
    launch::fits(&project, console, &sources)?;
    Ok((project, sources, devices))
}

/// What a command on a run works with.
pub(super) struct OfRun {
    pub(super) project: Project,
    pub(super) sources: Sources,
    pub(super) devices: Devices,
    /// What the folder of the run says; `None` where it holds no run.
    pub(super) recorded: Option<Recorded>,
}

/// Reads a model and its layout as `given`, and where that says nothing as the run in the folder `run` has them. Where it holds
/// no run, the model is `otherwise`, or the error.
pub(super) fn load_of_run(
    (args, command): (&DevicesArgs, &[(&str, String)]),
    given: &ProjectOptions,
    run: Option<&Path>,
    otherwise: Result<&str, Diagnostic>,
    console: &mut Console,
) -> Result<OfRun, Stop> {
    let (devices, recorded) = launch::devices_of(args, command, run, console)?;
    let merged = match &recorded {
        Some(r) => r.project(given).map_err(|d| *d),
        None => otherwise.map(|model| ProjectOptions { model: model.into(), ..given.clone() }),
    };
    let merged = agree_on_result(console.processes(), "the run", merged.map_err(Failure::from));
    let merged = merged.map_err(|f| console.failed(f, &Sources::new()))?;
    let (project, sources) = load(&merged, console)?;
    launch::fits(&project, console, &sources)?;
    Ok(OfRun { project, sources, devices, recorded })
}

/// Says what there is to say about an evaluation or a prediction that is about to run; its errors come when it does.
pub(crate) fn warn(found: &[Diagnostic], console: &mut Console, sources: &Sources) {
    if console.leads() && !has_errors(found) {
        console.diagnostics(found, sources);
    }
}

/// Folders in which data is sought.
pub(super) fn data_roots() -> Vec<PathBuf> {
    let given = std::env::var_os("MESHWRIGHT_DATA");
    let current = std::env::current_dir().unwrap_or_default();
    let exe = std::env::current_exe().ok();
    let mut all = roots(given.as_deref(), &current, exe.as_deref());
    all.extend(surroundings::data().map(PathBuf::from));
    all
}

/// The mesh of a project, in words.
pub(super) fn mesh(project: &Project) -> String {
    let mesh = &project.layout.mesh;
    match mesh.axes.len() {
        0 => "one device".into(),
        _ => {
            format!("{} = {}", mesh.describe(), crate::output::text::counted(mesh.devices() as u64, "device"))
        }
    }
}
