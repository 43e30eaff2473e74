//! The mesh that a layout declares, and whether the devices at hand make it up.

use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_plan::{Mesh, MeshAxis};
use meshwright_syntax::ast::{LayoutFile, LayoutKind, MeshDecl};

/// Most devices a mesh may have.
const MAX_DEVICES: u64 = 1 << 20;
/// Most axes a mesh may have.
const MAX_AXES: usize = 8;

fn declarations(file: &LayoutFile) -> Vec<&MeshDecl> {
    file.items
        .iter()
        .filter_map(|i| match &i.kind {
            LayoutKind::Mesh(m) => Some(m),
            _ => None,
        })
        .collect()
}

/// The mesh of a layout file, or the one that overrides it. Without any the mesh has no axes: one device.
pub fn mesh_of(file: &LayoutFile, over: Option<&MeshDecl>, out: &mut Vec<Diagnostic>) -> Option<Mesh> {
    let decls = over.map_or_else(|| declarations(file), |m| vec![m]);
    let before = out.len();
    let mut axes: Vec<(MeshAxis, Span)> = Vec::new();
    for a in decls.iter().flat_map(|d| &d.axes) {
        if let Some((_, first)) = axes.iter().find(|(x, _)| x.name == a.name.text) {
            out.push(
                Diagnostic::error(codes::E0308, format!("the mesh has two axes `{}`", a.name.text))
                    .at(a.name.span, "the second")
                    .and(*first, "the first")
                    .help("give one of them another name"),
            );
        } else if a.size == 0 {
            out.push(
                Diagnostic::error(
                    codes::E0306,
                    format!("the mesh axis `{}` has size 0: it has no devices", a.name.text),
                )
                .at(a.size_span, "must be at least 1")
                .fix("make it 1: the axis then splits nothing", a.size_span, "1", false),
            );
        } else {
            axes.push((MeshAxis { name: a.name.text.clone(), size: a.size as usize }, a.name.span));
        }
    }
    let devices =
        axes.iter().try_fold(1u64, |n, (a, _)| n.checked_mul(a.size as u64).filter(|n| *n <= MAX_DEVICES));
    if let (Some((_, span)), true) = (axes.last(), devices.is_none() || axes.len() > MAX_AXES) {
        out.push(
            Diagnostic::error(
                codes::E0309,
                format!("the mesh is too large: at most {MAX_AXES} axes and {MAX_DEVICES} devices"),
            )
            .at(*span, "up to here"),
        );
    }
    (out.len() == before).then(|| Mesh { axes: axes.into_iter().map(|a| a.0).collect() })
}

/// Whether `devices` make up the mesh; otherwise what to do, with a mesh of the same axes that fits if there is one.
pub fn check_devices(mesh: &Mesh, devices: usize) -> Option<Diagnostic> {
    if mesh.devices() == devices {
        return None;
    }
    let d = Diagnostic::error(
        codes::E0307,
        format!("the mesh {} has {} devices, but there are {devices}", mesh.describe(), mesh.devices()),
    );
    let others: usize = mesh.axes.iter().skip(1).map(|a| a.size).product();
    Some(match mesh.axes.first() {
        Some(first) if devices > 0 && devices.is_multiple_of(others) => {
            let mut fit = mesh.clone();
            fit.axes[0].size = devices / others;
            let text: Vec<String> = fit.axes.iter().map(|a| format!("{}={}", a.name, a.size)).collect();
            d.help(format!("change `{}`: `--mesh {}`", first.name, text.join(",")))
        }
        Some(first) => d.help(format!(
            "use one axis: `--mesh {}={devices}`, or start {} devices",
            first.name,
            mesh.devices()
        )),
        None => d.help(format!("declare a mesh: `--mesh all={devices}`")),
    })
}
