//! What every command on a model begins with: reading and checking it, and the places where data is sought.

use crate::console::Console;
use crate::stop::Stop;
use meshwright_diag::Sources;
use meshwright_train::data::roots;
use meshwright_train::{Project, ProjectOptions};
use std::path::PathBuf;

/// Reads a model and its layout, and says what there is to say about them.
pub(super) fn load(options: &ProjectOptions, console: &mut Console) -> Result<(Project, Sources), Stop> {
    let loaded = Project::load(options);
    console.diagnostics(&loaded.diagnostics, &loaded.sources);
    match loaded.project {
        Some(project) => Ok((project, loaded.sources)),
        None => Err(Stop::Diagnosed),
    }
}

/// Folders in which data is sought.
pub(super) fn data_roots() -> Vec<PathBuf> {
    let given = std::env::var_os("MESHWRIGHT_DATA");
    let current = std::env::current_dir().unwrap_or_default();
    let exe = std::env::current_exe().ok();
    roots(given.as_deref(), &current, exe.as_deref())
}

/// The mesh of a project, in words.
pub(super) fn mesh(project: &Project) -> String {
    let mesh = &project.layout.mesh;
    match mesh.axes.len() {
        0 => "one device".into(),
        _ => format!("{} = {}", mesh.describe(), crate::text::counted(mesh.devices() as u64, "device")),
    }
}
