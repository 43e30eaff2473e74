//! The mesh that a layout declares, and whether the devices at hand make it up.

use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_plan::{Mesh, MeshAxis};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{AxisDecl, LayoutFile, LayoutKind, MeshDecl, MeshOption, Name};

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

/// The axes of a layout in order: those that it declares, or else those that its rules name.
fn axis_names(file: &LayoutFile) -> Vec<&str> {
    let declared = declarations(file).into_iter().flat_map(|d| d.axes.iter().map(|a| &a.name));
    let rules = file.items.iter().filter_map(|i| match &i.kind {
        LayoutKind::Rule(rule) => Some(&rule.axes),
        _ => None,
    });
    let mut all: Vec<&Name> = declared.collect();
    if all.is_empty() {
        all = rules.flatten().collect();
    }
    let mut seen = SortedSet::new();
    all.into_iter().map(|name| name.text.as_str()).filter(|name| seen.insert(*name)).collect()
}

/// The mesh that an option gives: sizes alone are those of the axes of the layout, in its order.
pub fn named_mesh(option: &MeshOption, file: &LayoutFile, out: &mut Vec<Diagnostic>) -> Option<MeshDecl> {
    let (sizes, span) = match option {
        MeshOption::Named(decl) => return Some(decl.clone()),
        MeshOption::Sizes { sizes, span } => (sizes, *span),
    };
    let names = axis_names(file);
    if names.len() == sizes.len() {
        let axis = |(name, (size, at)): (&&str, &(u64, Span))| AxisDecl {
            name: Name { text: name.to_string(), span: *at },
            size: *size,
            size_span: *at,
        };
        return Some(MeshDecl { axes: names.iter().zip(sizes).map(axis).collect(), span });
    }
    let count = |n: usize, what: &str, many: &str| format!("{n} {}", if n == 1 { what } else { many });
    let (given, has) = (count(sizes.len(), "size", "sizes"), count(names.len(), "axis", "axes"));
    let listed: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    let listed = if listed.is_empty() { String::new() } else { format!(": {}", listed.join(", ")) };
    let d = Diagnostic::error(codes::E0311, format!("the mesh has {given}, and the layout {has}{listed}"))
        .at(span, given);
    let first = sizes.first().map_or(1, |s| s.0);
    out.push(match names.as_slice() {
        [] => d.help(format!("name the axes: `--mesh data={first}`, with a layout that splits over them")),
        names => {
            let size = |i: usize| sizes.get(i).map_or(1, |s| s.0);
            let all: Vec<u64> = (0..names.len()).map(size).collect();
            let by_position: Vec<String> = all.iter().map(u64::to_string).collect();
            let by_name: Vec<String> = names.iter().zip(&all).map(|(n, s)| format!("{n}={s}")).collect();
            let (by_position, by_name) = (by_position.join("x"), by_name.join(","));
            d.help(format!("give a size for each: `--mesh {by_position}`, or by name, `--mesh {by_name}`"))
        }
    });
    None
}

/// The mesh of a layout file, or the one that overrides it. Without any the mesh has no axes: one device.
pub fn mesh_of(file: &LayoutFile, over: Option<&MeshDecl>, out: &mut Vec<Diagnostic>) -> Option<Mesh> {
    let decls = over.map_or_else(|| declarations(file), |m| vec![m]);
    let before = out.len();
    let mut axes: Vec<(MeshAxis, Span)> = Vec::new();
    let mut seen: SortedMap<&str, Span> = SortedMap::new();
    for a in decls.iter().flat_map(|d| &d.axes) {
        if out.len() >= before + MAX_REPORTED {
            return None;
        }
        let repeated = seen.get(a.name.text.as_str());
        if let Some(first) = repeated {
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
            seen.insert(&a.name.text, a.name.span);
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

/// Whether the mesh has as many devices as were asked for; otherwise what to do.
pub fn check_devices(mesh: &Mesh, devices: usize) -> Option<Diagnostic> {
    let has = mesh.devices();
    if has == devices {
        return None;
    }
    let described = if mesh.axes.is_empty() { "without axes".into() } else { mesh.describe() };
    let message = format!("the mesh {described} has {has} devices, but `--expect-devices` expects {devices}");
    let message = message.replace("has 1 devices", "has one device");
    let d = Diagnostic::error(codes::E0307, message);
    Some(match mesh.resized(devices) {
        Some(fit) => d
            .help(format!("give another mesh: `--mesh {}`", fit.option()))
            .help(format!("or expect what the mesh has: `--expect-devices {has}`")),
        None => d.help(format!("declare a mesh: `--mesh all={devices}`")),
    })
}

/// The mesh that was given in place of the layout's, with that one's axes.
pub(super) fn with_axes_of(file: &LayoutFile, given: &Mesh) -> Option<Mesh> {
    let declared: Vec<&str> =
        declarations(file).iter().flat_map(|d| &d.axes).map(|a| a.name.text.as_str()).collect();
    let size = |name: &&str| given.find(name).map_or(1, |a| given.size(a));
    let sizes: Vec<usize> = declared.iter().map(size).collect();
    let mut mesh = Mesh::new(declared.iter().copied().zip(sizes));
    // What the axes that it knows leave over goes to the first that it lacks.
    let lacks = mesh.axes.iter_mut().find(|a| given.find(&a.name).is_none());
    let known: usize =
        given.axes.iter().filter(|a| declared.contains(&a.name.as_str())).map(|a| a.size).product();
    if let Some(axis) = lacks {
        axis.size = given.devices() / known.max(1);
    }
    (!mesh.axes.is_empty()).then_some(mesh)
}
