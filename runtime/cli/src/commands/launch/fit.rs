//! Whether a plan fits the nodes that are asked for.

use crate::args::LaunchCommon;
use crate::commands::passes::Made;
use crate::text::bytes;
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{Axis, DType, Mesh, Plan, StepKind};
use std::collections::BTreeMap;

/// A plan on nodes.
pub(super) struct Fit {
    /// Ranks in all.
    pub(super) devices: usize,
    /// Peak bytes of a device by the plan.
    pub(super) peak: u64,
    /// What moves in a step.
    pub(super) traffic: Vec<Traffic>,
}

/// The bytes that a device gives to the collectives over some axes in a step.
pub(super) struct Traffic {
    /// The axes, by name.
    pub(super) axes: String,
    /// Bytes in a step.
    pub(super) bytes: u64,
    /// Whether some group of these axes has members on several nodes.
    pub(super) crosses: bool,
}

/// Refuses what does not fit; says what moves where.
pub(super) fn fit(made: &Made, common: &LaunchCommon) -> Result<Fit, Box<Diagnostic>> {
    let plan = &made.compiled.plan;
    let devices = plan.mesh.devices();
    let (nodes, per_node) = (common.nodes as usize, common.per_node as usize);
    if devices != nodes * per_node {
        return Err(Box::new(misfit(&plan.mesh, nodes, per_node)));
    }
    let each = common.devices_per_process;
    if !common.per_node.is_multiple_of(each) {
        let message = format!("processes of {each} devices do not fill nodes of {per_node}");
        let found = Diagnostic::error(codes::E0530, message).help(format!(
            "`--devices-per-process {per_node}` has one process a node, 1 one for each device"
        ));
        return Err(Box::new(found));
    }
    let peak = plan.summary.peak_bytes;
    if let Some(memory) = common.memory
        && peak > memory as u64
    {
        let message =
            format!("the plan needs {} on each device, which has {}", bytes(peak), bytes(memory as u64));
        let found = Diagnostic::error(codes::E0530, message)
            .help("a smaller batch (`--dim`), or a layout that splits parameters, gradients and moments (`--layout zero3`), needs less");
        return Err(Box::new(found));
    }
    if !common.cpu && plan.buffers.iter().any(|b| b.dtype == DType::F64) {
        let found = Diagnostic::error(codes::E0530, "the model computes in f64, which GPUs do not run")
            .help("add `--precision f32` or `--precision bf16`, or launch processes on CPUs with `--cpu`");
        return Err(Box::new(found));
    }
    Ok(Fit { devices, peak, traffic: traffic(plan, per_node) })
}

fn misfit(mesh: &Mesh, nodes: usize, per_node: usize) -> Diagnostic {
    let (devices, ranks) = (mesh.devices(), nodes * per_node);
    let message = format!(
        "the mesh {} has {devices} devices, {nodes} nodes with {per_node} each have {ranks}",
        if mesh.axes.is_empty() { "without axes".into() } else { mesh.describe() }
    );
    let mut found = Diagnostic::error(codes::E0530, message);
    if devices.is_multiple_of(per_node) {
        found = found.help(format!("`--nodes {}` has as many as the mesh", devices / per_node));
    }
    if let Some(mesh) = resized(mesh, ranks) {
        found = found.help(format!("or a mesh of {ranks}: `--mesh {mesh}`"));
    }
    found
}

/// The mesh with one axis of another size, so that it has so many devices: the first axis that can.
pub(super) fn resized(mesh: &Mesh, devices: usize) -> Option<String> {
    let fitting = (0..mesh.axes.len()).find_map(|at| {
        let others: usize =
            mesh.axes.iter().enumerate().filter(|(i, _)| *i != at).map(|a| a.1.size).product();
        devices.is_multiple_of(others).then_some((at, devices / others))
    })?;
    let sizes = mesh.axes.iter().enumerate().map(|(i, a)| {
        let size = if i == fitting.0 { fitting.1 } else { a.size };
        format!("{}={size}", a.name)
    });
    Some(sizes.collect::<Vec<_>>().join(","))
}

fn traffic(plan: &Plan, per_node: usize) -> Vec<Traffic> {
    let mut by_axes: BTreeMap<Vec<Axis>, u64> = BTreeMap::new();
    for step in &plan.steps {
        if let StepKind::Collective(collective) = &step.kind {
            let sent: usize = collective.bytes(plan).iter().sum();
            *by_axes.entry(collective.axes()).or_default() += sent as u64;
        }
    }
    let mesh = &plan.mesh;
    let crosses = |axes: &[Axis]| {
        (0..mesh.devices()).any(|rank| mesh.group(rank, axes).iter().any(|r| r / per_node != rank / per_node))
    };
    let named = |axes: &[Axis]| axes.iter().map(|a| mesh.name(*a)).collect::<Vec<_>>().join(", ");
    by_axes
        .into_iter()
        .map(|(axes, bytes)| Traffic { crosses: crosses(&axes), axes: named(&axes), bytes })
        .collect()
}
