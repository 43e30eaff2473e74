//! What a layout costs: every value with its placement, every collective with its cause, totals for one device. The same
//! data is the table of `meshwright explain` and its JSON.

use crate::compile::Compiled;
use crate::partition::{Instr, Spmd};
use crate::schedule::LineOf;
use meshwright_diag::Span;
use meshwright_ops::{Class, Graph, Id, Kind};
use meshwright_plan::{Phase, Plan, Step};
use serde::Serialize;

/// A mesh axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AxisReport {
    /// Its name.
    pub axis: String,
    /// Devices along it.
    pub size: usize,
}

/// A value as one device holds it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueReport {
    /// Line of the model file; 0 where there is none.
    pub line: u32,
    /// Part of the step.
    pub phase: Phase,
    /// Its name.
    pub value: String,
    /// Its dims.
    pub dims: Vec<String>,
    /// Local sizes of its dims (the largest block).
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: String,
    /// Bytes on one device.
    pub bytes: usize,
    /// `batch:r hidden:c`; `-` where whole.
    pub split_by: String,
}

/// A part of a bucket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartReport {
    /// The value.
    pub value: String,
    /// Its line.
    pub line: u32,
    /// Its bytes.
    pub bytes: usize,
    /// Why.
    pub because: String,
}

/// A collective of the Plan, in order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveReport {
    /// `all_reduce` and so on.
    pub op: String,
    /// Axes of its group.
    pub axes: Vec<String>,
    /// Bytes of one device's buffer: what goes in, of an all-gather what comes out, of a permute what comes from others.
    pub bytes: usize,
    /// Part of the step.
    pub phase: Phase,
    /// The value, or the values of a bucket joined by commas.
    pub value: String,
    /// Line of the first value.
    pub line: u32,
    /// Why; of a bucket the distinct reasons.
    pub because: String,
    /// The values of a bucket.
    pub parts: Vec<PartReport>,
    /// Position of the step that starts it, among the steps of the Plan.
    pub start: usize,
    /// Position of the step that waits for it; that of its start where it runs in one go.
    pub join: usize,
    /// Steps that compute while it is in flight.
    pub meanwhile: usize,
    /// The values of the first and the last of them.
    pub over: Option<(String, String)>,
}

/// Totals for the device with the largest blocks, per step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "as in `Summary` of the Plan")]
pub struct DeviceReport {
    pub flops: u64,
    pub collective_bytes: u64,
    pub peak_bytes: u64,
    pub parameter_bytes: u64,
    pub optimizer_state_bytes: u64,
    pub activation_bytes: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The mesh.
    pub mesh: Vec<AxisReport>,
    /// Devices of the mesh.
    pub devices: usize,
    /// Values in order.
    pub values: Vec<ValueReport>,
    /// Collectives in order.
    pub collectives: Vec<CollectiveReport>,
    /// Totals.
    pub per_device: DeviceReport,
}

/// Reports a compiled step.
pub fn explain(compiled: &Compiled, line_of: &LineOf) -> Report {
    let (spmd, plan) = (&compiled.spmd, &compiled.plan);
    let s = &plan.summary;
    Report {
        mesh: plan.mesh.axes.iter().map(|a| AxisReport { axis: a.name.clone(), size: a.size }).collect(),
        devices: plan.mesh.devices(),
        values: values(spmd, line_of),
        collectives: collectives(plan),
        per_device: DeviceReport {
            flops: s.flops,
            collective_bytes: s.collective_bytes,
            peak_bytes: s.peak_bytes,
            parameter_bytes: s.parameter_bytes,
            optimizer_state_bytes: s.optimizer_state_bytes,
            activation_bytes: s.activation_bytes,
        },
    }
}

/// Values that a user would look for: what has a name in the program (the value that bears it, not what it is made of),
/// finished gradients, moments and next values of parameters.
fn values(spmd: &Spmd, line_of: &LineOf) -> Vec<ValueReport> {
    let g = &spmd.step.graph;
    let mut out = Vec::new();
    for instr in &spmd.instrs {
        if matches!(instr, Instr::Reshard { .. }) {
            continue;
        }
        let v = spmd.copy(instr.out());
        let Some(name) = shown(g, v.value, spmd) else { continue };
        let n = g.node(v.value);
        let shape: Vec<usize> =
            n.ty.dims
                .iter()
                .map(|d| meshwright_plan::largest_shard(g.dims.size(*d), v.placement.axes(*d), &spmd.mesh))
                .collect();
        out.push(ValueReport {
            line: line(line_of, n.origin.span),
            phase: n.origin.phase,
            value: name,
            dims: n.ty.dims.iter().map(|d| g.dims.name(*d).to_string()).collect(),
            bytes: spmd.bytes(instr.out()),
            shape,
            dtype: n.ty.dtype.name().into(),
            split_by: v.placement.describe(&g.dims, &spmd.mesh),
        });
    }
    out
}

fn line(line_of: &LineOf, span: Span) -> u32 {
    line_of(span)
}

/// The name under which a value is shown, if it is. Of the values that one name was given to (a `let` is many ops), the last
/// bears it; of an update, what the step keeps.
pub(crate) fn shown(g: &Graph, id: Id, spmd: &Spmd) -> Option<String> {
    let n = g.node(id);
    if n.origin.name.is_empty() || matches!(n.op.kind(), Kind::Rematerializable) {
        return None;
    }
    let named = match n.origin.phase {
        _ if matches!(n.op.kind(), Kind::Input(_)) => true,
        Phase::Forward => {
            let same = |i: &Id| {
                let o = &g.node(*i).origin;
                // What a layer returns bears the caller's name too: the caller's value is the one to show.
                let around = o.path.is_empty() || n.origin.path.starts_with(&*o.path);
                around && (&o.name, o.phase) == (&n.origin.name, n.origin.phase)
            };
            let all: Vec<Id> = g.ids().filter(same).collect();
            all.into_iter().rfind(|i| !part_of_sum(g, *i)) == Some(id)
        }
        Phase::Backward => n.origin.class == Class::Grad,
        Phase::Update => {
            let goal = spmd.step.outputs.iter().find(|goal| goal.id == id);
            return goal.map(|goal| format!("new {}", goal.name));
        }
    };
    named.then(|| n.origin.name.to_string())
}

/// Whether a value is the unfinished part of a sum that the partitioner took out of it: it is the operand of an earlier one.
fn part_of_sum(g: &Graph, id: Id) -> bool {
    matches!(g.node(id).op.kind(), Kind::Add)
        && g.ids().take_while(|u| *u < id).any(|u| g.node(u).inputs.contains(&id))
}

fn collectives(plan: &Plan) -> Vec<CollectiveReport> {
    let mut out = Vec::new();
    for (start, step) in plan.steps.iter().enumerate() {
        let Some(c) = step.collective() else { continue };
        let join = plan.end_of(start);
        let between: Vec<&Step> = plan.steps[start..join].iter().filter(|s| s.computes()).collect();
        let named = |s: &&Step| s.origin.last().map_or_else(String::new, |w| w.value.clone());
        let sizes = step.collective_bytes(plan);
        let parts: Vec<PartReport> = step
            .origin
            .iter()
            .zip(&sizes)
            .map(|(w, b)| PartReport {
                value: w.value.clone(),
                line: w.line,
                bytes: *b,
                because: w.because.clone(),
            })
            .collect();
        let mut reasons: Vec<&str> = Vec::new();
        for p in &parts {
            if !reasons.contains(&p.because.as_str()) {
                reasons.push(&p.because);
            }
        }
        out.push(CollectiveReport {
            op: c.name().into(),
            axes: c.axes().iter().map(|a| plan.mesh.name(*a).to_string()).collect(),
            bytes: sizes.iter().sum(),
            phase: step.phase,
            value: parts.iter().map(|p| p.value.as_str()).collect::<Vec<_>>().join(", "),
            line: parts.first().map_or(0, |p| p.line),
            because: reasons.join("; "),
            parts,
            start,
            join,
            meanwhile: between.len(),
            over: between.first().map(named).zip(between.last().map(named)),
        });
    }
    out
}
