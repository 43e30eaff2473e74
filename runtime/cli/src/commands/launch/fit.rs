//! Whether a plan fits the nodes that are asked for.

use crate::args::LaunchCommon;
use crate::commands::model::passes::Made;
use crate::launch::split;
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{Axis, DType, Mesh, Plan};
use meshwright_sorted::SortedMap;

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
#[derive(serde::Serialize)]
pub(super) struct Traffic {
    /// The axes, by name.
    pub(super) axes: String,
    /// Bytes in a step.
    pub(super) bytes: u64,
    /// Whether some group of these axes has members on several nodes.
    #[serde(rename = "between_nodes")]
    pub(super) crosses: bool,
}

/// Refuses a mesh that does not fit the nodes; says what moves where.
pub(super) fn fit(made: &Made, common: &LaunchCommon) -> Result<Fit, Box<Diagnostic>> {
    let plan = &made.compiled.plan;
    let devices = plan.mesh.devices();
    let example = made.project.example_dim().map_or("batch", |d| d.1);
    let (nodes, per_node) = (common.nodes as usize, common.per_node as usize);
    if devices != nodes * per_node {
        return Err(Box::new(misfit(&plan.mesh, example, nodes, per_node)));
    }
    let each = common.devices_per_process;
    if !common.per_node.is_multiple_of(each) {
        let message = format!("processes of {each} devices do not fill nodes of {per_node}");
        let found = Diagnostic::error(codes::E0530, message).help(format!(
            "`--devices-per-process {per_node}` has one process a node, 1 one for each device"
        ));
        return Err(Box::new(found));
    }
    if !common.cpu && plan.buffers.iter().any(|b| b.dtype == DType::F64) {
        let found = Diagnostic::error(codes::E0530, "the model computes in f64, which GPUs do not run")
            .help("add `--precision f32` or `--precision bf16`, or launch processes on CPUs with `--cpu`");
        return Err(Box::new(found));
    }
    Ok(Fit { devices, peak: plan.summary.peak_bytes, traffic: traffic(plan, per_node) })
}

fn misfit(mesh: &Mesh, example: &str, nodes: usize, per_node: usize) -> Diagnostic {
    let (devices, ranks) = (mesh.devices(), nodes * per_node);
    let have = format!("{nodes} nodes with {per_node} each have {ranks}");
    let Some(fitting) = mesh.resized(ranks) else {
        let message = format!("without a mesh the model is on one device, and {have}");
        return Diagnostic::error(codes::E0530, message).help(split(ranks, example));
    };
    let message = format!("the mesh {} has {devices} devices, and {have}", mesh.describe());
    let mut found = Diagnostic::error(codes::E0530, message);
    if devices.is_multiple_of(per_node) {
        found = found.help(format!("`--nodes {}` has as many as the mesh", devices / per_node));
    }
    found.help(format!("a mesh of {ranks} is `--mesh {}`", fitting.option()))
}

fn traffic(plan: &Plan, per_node: usize) -> Vec<Traffic> {
    let mut by_axes: SortedMap<Vec<Axis>, u64> = SortedMap::new();
    for total in plan.communication() {
        let axes = total.axes.iter().filter_map(|name| plan.mesh.find(name)).collect();
        *by_axes.entry(axes).or_default() += total.bytes;
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
