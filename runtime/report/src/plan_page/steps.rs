//! The steps of a Plan, each with what it reads and writes, what it computes, and what a collective moves and why.

use super::pools::{LinePool, RulePool, TextPool};
use super::value_placement::PlacedTypes;
use meshwright_plan::{Operand, Phase, Plan, Prim, Step};
use meshwright_sorted::SortedMap;
use serde::Serialize;

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StepView {
    /// Its primitive, or its collective.
    op: &'static str,
    phase: Phase,
    /// Runs in a step of training.
    times: u64,
    #[serde(skip_serializing_if = "is_zero")]
    lag: u8,
    /// Operations of the device with the largest shards.
    #[serde(skip_serializing_if = "is_none")]
    flops: u64,
    /// Each as a buffer and a type.
    reads: Vec<(u32, usize)>,
    writes: Vec<(u32, usize)>,
    /// Origin of each result, or of the awaited values.
    of: Vec<OriginView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<CollectiveView>,
    /// Of a wait, the step that started its collective.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<usize>,
}

/// Origin of a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct OriginView {
    /// Its path, by its place among the texts.
    path: usize,
    /// Its line, by its place among the lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// Why, by its place among the texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<usize>,
    /// The rules of the layout behind it, by their places among the rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<usize>,
}

/// Bytes of a collective.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CollectiveView {
    axes: Vec<u8>,
    /// Devices of its group.
    devices: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    monoid: Option<&'static str>,
    /// Of each operand, as `explain` has it.
    bytes: Vec<u64>,
    /// Least factor of these bytes that a device must send, or receive.
    factor: f64,
    /// The step that waits for it; itself where it goes on beside nothing.
    wait: usize,
}

/// A loop.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LoopView {
    begin: usize,
    end: usize,
    dim: String,
    iterations: usize,
    reverse: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(n: &u8) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_none(n: &u64) -> bool {
    *n == 0
}

/// The loops of a Plan, outer ones before those in them.
pub(super) fn loops(plan: &Plan) -> Vec<LoopView> {
    let all = plan.loops();
    let view = |i: usize| LoopView {
        begin: all[i].begin,
        end: all[i].end,
        dim: plan.dims.name(all[i].dim).into(),
        iterations: all[i].most,
        reverse: all[i].reverse,
    };
    (0..all.len()).map(view).collect()
}

/// The steps of a Plan.
pub(super) fn all(
    plan: &Plan,
    types: &mut PlacedTypes<'_>,
    texts: &mut TextPool,
    lines: &mut LinePool<'_>,
    rules: &mut RulePool<'_>,
) -> Vec<StepView> {
    let starts = plan.steps.iter().enumerate().filter(|(_, s)| s.collective().is_some());
    let starts: SortedMap<u32, usize> = starts.filter_map(|(i, s)| Some((s.async_id?, i))).collect();
    let mut out = Vec::with_capacity(plan.steps.len());
    for ((at, step), times) in plan.steps.iter().enumerate().zip(plan.times()) {
        let mut operand = |o: &Operand| (o.buf.0, types.of(o.buf, &o.dims, texts));
        let (reads, writes) =
            (step.reads.iter().map(&mut operand).collect(), step.writes.iter().map(&mut operand).collect());
        let origin = step.origin.iter().map(|o| OriginView {
            path: texts.at(&o.path),
            line: lines.of_value(o.id),
            because: (!o.because.is_empty()).then(|| texts.at(&o.because)),
            rules: rules.of(o),
        });
        out.push(StepView {
            op: step.name(),
            phase: step.phase,
            times,
            lag: step.lag,
            flops: step.flops(plan),
            reads,
            writes,
            of: origin.collect(),
            collective: collective(plan, at),
            started: started(step, &starts),
        });
    }
    out
}

fn started(step: &Step, starts: &SortedMap<u32, usize>) -> Option<usize> {
    matches!(step.prim, Prim::Wait).then(|| starts.get(&step.async_id?).copied())?
}

fn collective(plan: &Plan, at: usize) -> Option<CollectiveView> {
    let step = &plan.steps[at];
    let c = step.collective()?;
    let devices = c.devices(&plan.mesh);
    Some(CollectiveView {
        axes: c.axes().iter().map(|a| a.0).collect(),
        devices,
        monoid: c.spec().monoid.map(|m| m.name()),
        bytes: step.collective_bytes(plan).into_iter().map(|b| b as u64).collect(),
        factor: c.kind().bus_factor().of(devices),
        wait: plan.end_of(at),
    })
}
