//! What a layout costs: every value with its placement, every collective with its cause, totals for one device. The same
//! data is the table of `meshwright explain` and its JSON.

mod alternatives;
mod attention;
mod in_bf16;
mod pipeline;
mod recompute_effect;
mod rules;

pub use alternatives::{AlternativeReport, alternatives};
pub use attention::{AttentionReport, attention, attention_lines, note_no_kernels};
pub use in_bf16::{Bf16MatmulReport, in_bf16, in_bf16_lines};
pub use pipeline::{PipelineReport, StageReport};
pub use recompute_effect::{AddedOp, RecomputeReport, recomputed};
pub use rules::split_by_rules;

use crate::compile::Compiled;
use crate::lowering::LineOf;
use crate::partition::{Instr, Spmd};
use crate::rows::Rows;
use meshwright_ops::Id;
use meshwright_plan::{
    CollectiveTotal, Dim, Extent, PeakMemory, Phase, Plan, Prim, Provenance, StepLoop, StoredElements,
};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::Serialize;
use std::ops::Range;

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
    /// Its number in the partitioned step, by which collectives refer to it.
    pub id: u32,
    /// Line of the model file; 0 where there is none.
    pub line: u32,
    /// Part of the step.
    pub phase: Phase,
    /// Its path.
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
    /// The innermost loop that it is in, by its position among those of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_loop: Option<usize>,
}

/// A loop of a step: what is in it happens once in each iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoopReport {
    /// The dim for whose positions it runs.
    pub dim: String,
    /// The size of that.
    pub iterations: usize,
    /// From the last position to the first, as loops of the backward pass.
    pub reverse: bool,
    /// The loop that it is in, by its position among those of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
}

/// What a collective moves of one value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartReport {
    /// The value at whose row it stands, by its number.
    pub id: u32,
    /// Path of the value.
    pub value: String,
    /// Its line.
    pub line: u32,
    /// Its bytes.
    pub bytes: usize,
    /// Why.
    pub because: String,
    /// Line of the layout rule that brought it about, if one did.
    pub rule: Option<u32>,
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
    /// How often it runs in a step.
    pub times: u64,
    /// The innermost loop that it is in, by its position among those of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_loop: Option<usize>,
    /// How many iterations it runs ahead of what its loop computes; of what waits until later ones, below zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<i16>,
    /// Part of the step.
    pub phase: Phase,
    /// Path of the value, or those of a bucket joined by commas.
    pub value: String,
    /// Line of the first value.
    pub line: u32,
    /// Why; of a bucket the distinct reasons.
    pub because: String,
    /// The value, or the values of a bucket.
    pub parts: Vec<PartReport>,
    /// Position of the step that starts it, among the steps of the Plan.
    pub start: usize,
    /// Position of the step that waits for it; that of its start where it runs in one go.
    pub wait: usize,
    /// Steps that compute while it is in flight.
    pub meanwhile: usize,
    /// The values of the first and the last of them.
    pub over: Option<(String, String)>,
    /// Its time on a machine, if one was named.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub time: Option<CollectiveTimes>,
}

/// The estimated time of a collective in a step, all times that it runs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CollectiveTimes {
    /// Seconds.
    pub seconds: f64,
    /// Those of them for which kernels wait.
    pub exposed_seconds: f64,
    /// Relative error of both.
    #[serde(rename = "estimate_error")]
    pub error: f64,
}

/// The estimated time of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EstimatedStep {
    /// The machine.
    pub machine: String,
    /// Seconds of a step.
    pub seconds: f64,
    /// Relative error of it.
    pub error: f64,
    /// Seconds for which kernels wait for collectives.
    pub exposed_seconds: f64,
}

impl CollectiveReport {
    /// Bytes of one of its parts in a step: in a loop, as often as it runs.
    pub fn in_step(&self, part: &PartReport) -> u64 {
        self.times.saturating_mul(part.bytes as u64)
    }
}

/// Totals for the device with the largest blocks, per step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes that it gives to collectives.
    pub collective_bytes: u64,
    /// What it holds at its peak, by use.
    #[serde(flatten)]
    pub memory: PeakMemory,
}

/// Launches of a step on a device of a kind, with the bytes that it moves through its memory and holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceTotals {
    /// The kind of device.
    pub device: String,
    /// Launches of kernels, and operations of Burn that compute.
    pub kernels: u64,
    /// Operations of Burn, of those.
    pub burn_operations: u64,
    /// Bytes that kernels read; a tensor counts once for each of them.
    pub read_bytes: u64,
    /// Bytes that kernels write.
    pub written_bytes: u64,
    /// Bytes of the arena; 0 where there is none.
    pub arena_bytes: u64,
    /// What it holds at its peak by use, less what it never makes.
    #[serde(flatten)]
    pub memory: PeakMemory,
}

/// A large product of matrices that no fast kernel of a GPU computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowMatmulReport {
    /// Its path.
    pub path: String,
    /// Line of the model file, 0 where there is none.
    pub line: u32,
    /// Batches, rows, columns and summed terms on the device with the largest shards.
    pub extents: [usize; 4],
    /// Why, in words.
    pub because: String,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The program: `train`, `eval` or `predict`.
    pub program: String,
    /// The mesh.
    pub mesh: Vec<AxisReport>,
    /// Devices of the mesh.
    pub devices: usize,
    /// Loops in order, outer ones before those in them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loops: Vec<LoopReport>,
    /// Values in order.
    pub values: Vec<ValueReport>,
    /// Collectives in order.
    pub collectives: Vec<CollectiveReport>,
    /// Attention, where there is any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<AttentionReport>,
    /// What each path of `recompute` brings, where that was asked for: [`recomputed`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recompute: Vec<RecomputeReport>,
    /// Lines that would move other bytes or take other memory, where that was asked for: [`alternatives`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeReport>,
    /// Large products that no fast kernel of a GPU computes, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_products: Vec<SlowMatmulReport>,
    /// Matmuls of factors in 8 bits that a GPU computes in `bf16`, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_bf16: Vec<Bf16MatmulReport>,
    /// What a kind of device launches, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceTotals>,
    /// The estimated time of a step, if a machine was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimatedStep>,
    /// The stages of a pipeline, if a training step has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<PipelineReport>,
    /// Totals.
    pub per_device: DeviceReport,
    /// Totals of the collectives by kind and axes, in the order in which they first occur.
    pub totals: Vec<CollectiveTotal>,
}

impl Report {
    /// How often in a step an iteration of a loop begins; once where there is no loop.
    pub fn times(&self, mut of: Option<usize>) -> u64 {
        let mut times = 1u64;
        while let Some(l) = of.and_then(|of| self.loops.get(of)) {
            times = times.saturating_mul(l.iterations as u64);
            of = l.parent;
        }
        times
    }
}

/// Reports a compiled step.
pub fn explain(compiled: &Compiled, line_of: &LineOf) -> Report {
    let (spmd, plan) = (&compiled.spmd, &compiled.plan);
    let s = &plan.summary;
    let rows = Rows::of(spmd);
    let collectives = collectives(spmd, &rows, plan);
    Report {
        program: plan.program.clone(),
        mesh: plan.mesh.axes.iter().map(|a| AxisReport { axis: a.name.clone(), size: a.size }).collect(),
        devices: plan.mesh.devices(),
        loops: loops(plan),
        values: values(spmd, &rows, &collectives, line_of),
        totals: plan.communication(),
        attention: attention(spmd, plan, line_of),
        recompute: Vec::new(),
        alternatives: Vec::new(),
        slow_products: Vec::new(),
        in_bf16: Vec::new(),
        device: None,
        estimate: None,
        pipeline: pipeline::pipeline(plan),
        collectives,
        per_device: DeviceReport {
            flops: s.flops,
            collective_bytes: s.collective_bytes,
            memory: plan.peak_memory(&StoredElements::new()),
        },
    }
}

/// The innermost loop that each of so many things is in, of loops with these bodies: one comes before those in it.
fn innermost(count: usize, bodies: impl Iterator<Item = Range<usize>>) -> Vec<Option<usize>> {
    let mut out = vec![None; count];
    bodies.enumerate().for_each(|(i, body)| out[body].fill(Some(i)));
    out
}

fn loops(plan: &Plan) -> Vec<LoopReport> {
    let all = plan.loops();
    let innermost = innermost(plan.steps.len(), all.iter().map(|l| l.begin + 1..l.end));
    let report = |i: usize| LoopReport {
        dim: plan.dims.name(all[i].dim).into(),
        iterations: all[i].most,
        reverse: all[i].reverse,
        parent: innermost[all[i].begin],
    };
    (0..all.len()).map(report).collect()
}

/// Values that a user would look for: what has a path in the program (the value that bears it, not what it is made of),
/// finished gradients, optimizer states and next values of parameters; and whatever else a collective moves.
fn values(spmd: &Spmd, rows: &Rows, collectives: &[CollectiveReport], line_of: &LineOf) -> Vec<ValueReport> {
    let g = &spmd.step.graph;
    let moved: SortedSet<u32> = collectives.iter().flat_map(|c| &c.parts).map(|p| p.id).collect();
    let innermost = innermost(spmd.instrs.len(), spmd.loops.iter().map(|l| l.body.clone()));
    let mut out = Vec::new();
    for (i, instr) in spmd.instrs.iter().enumerate() {
        if matches!(instr, Instr::Reshard { .. }) {
            continue;
        }
        let v = spmd.copy(instr.out());
        let path = rows.path(v.value).or_else(|| moved.contains(&v.value.0).then(|| g.path(v.value)));
        let Some(path) = path else { continue };
        let n = g.node(v.value);
        let largest = |d: &Dim| Extent::of(&g.dims, *d, v.placement.axes(*d)).largest(&spmd.mesh);
        out.push(ValueReport {
            id: v.value.0,
            line: line_of(n.origin.span),
            phase: n.origin.phase,
            value: path.into(),
            dims: n.ty.dims.iter().map(|d| g.dims.name(*d).to_string()).collect(),
            bytes: spmd.bytes(instr.out()),
            shape: n.ty.dims.iter().map(largest).collect(),
            dtype: spmd.dtype(instr.out()).name().into(),
            split_by: v.placement.describe(&g.dims, &spmd.mesh),
            // Loops have the same order here as in the Plan.
            in_loop: innermost[i],
        });
    }
    out
}

/// The lag of most of what a loop computes.
fn usual_lag(plan: &Plan, computes: &[usize], l: &StepLoop) -> i16 {
    let mut counts: SortedMap<u8, usize> = SortedMap::new();
    let [from, to] = [l.begin, l.end].map(|step| computes.partition_point(|i| *i < step));
    computes[from..to].iter().for_each(|i| *counts.entry(plan.steps[*i].lag).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(lag, _)| lag.into())
}

fn collectives(spmd: &Spmd, rows: &Rows, plan: &Plan) -> Vec<CollectiveReport> {
    let g = &spmd.step.graph;
    let mut out = Vec::new();
    let steps = || plan.steps.iter().enumerate();
    let waits = steps().filter(|(_, s)| matches!(s.prim, Prim::Wait));
    let waits: SortedMap<u32, usize> = waits.filter_map(|(i, s)| Some((s.async_id?, i))).collect();
    let computes: Vec<usize> = steps().filter(|(_, s)| s.computes()).map(|(i, _)| i).collect();
    let (loops, times) = (plan.loops(), plan.times());
    let place = |step: usize| computes.partition_point(|i| *i < step);
    let innermost = innermost(plan.steps.len(), loops.iter().map(|l| l.begin + 1..l.end));
    let lags: Vec<i16> = loops.iter().map(|l| usual_lag(plan, &computes, l)).collect();
    for (start, step) in steps() {
        let Some(c) = step.collective() else { continue };
        let wait = step.async_id.and_then(|f| waits.get(&f)).copied().unwrap_or(start);
        let between = &computes[place(start)..place(wait)];
        let named = |i: &usize| plan.steps[*i].origin.last().map_or_else(String::new, |w| w.path.to_string());
        let sizes = step.collective_bytes(plan);
        let part = |(w, bytes): (&Provenance, &usize)| PartReport {
            id: rows.row(g, Id(w.id)).0,
            value: w.path.to_string(),
            line: w.line,
            bytes: *bytes,
            because: w.because.to_string(),
            rule: w.rule,
        };
        let parts: Vec<PartReport> = step.origin.iter().zip(&sizes).map(part).collect();
        let mut told = SortedSet::new();
        let reasons: Vec<&str> =
            parts.iter().map(|p| p.because.as_str()).filter(|because| told.insert(*because)).collect();
        let in_loop = innermost[start];
        out.push(CollectiveReport {
            op: c.name().into(),
            axes: c.axes().iter().map(|a| plan.mesh.name(*a).to_string()).collect(),
            bytes: sizes.iter().sum(),
            times: times[start],
            in_loop,
            ahead: in_loop.map(|l| lags[l] - i16::from(step.lag)),
            phase: step.phase,
            value: parts.iter().map(|p| p.value.as_str()).collect::<Vec<_>>().join(", "),
            line: parts.first().map_or(0, |p| p.line),
            because: reasons.join("; "),
            parts,
            start,
            wait,
            meanwhile: between.len(),
            over: between.first().map(named).zip(between.last().map(named)),
            time: None,
        });
    }
    out
}
