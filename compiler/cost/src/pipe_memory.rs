//! Memory of a stage of a pipeline, projected from a Plan without one.

use crate::engine::EngineFacts;
use crate::foreign::input_dims;
use crate::pipe::{Pipe, StageBytes, StageShare};
use meshwright_plan::actions::PipelineSchedule;
use meshwright_plan::{BufId, Operand, Phase, Plan, ProgramInput, ProgramInputKind};
use meshwright_sorted::SortedMap;

/// Bytes of a gradient where an engine says nothing else.
pub(crate) const GRADIENT: f64 = 4.0;
/// Buffers of the largest activation outside of the loop that are alive at once: logits, their gradient, and what the loss keeps
/// of them.
const AT_ONCE: f64 = 3.0;

/// Microbatches whose residuals a stage of the first device keeps, in layers (Narayanan et al. 2021, section 2.2).
fn layers_in_flight(pipe: &Pipe, stage: StageShare) -> f64 {
    let (p, v, n) = (pipe.stages as f64, pipe.chunks as f64, stage.microbatches as f64);
    let chunks = match pipe.schedule {
        PipelineSchedule::Gpipe => n,
        _ if pipe.chunks == 1 => n.min(p),
        _ => (n * v).min(2.0 * (p - 1.0) + (v - 1.0) * p + 1.0),
    };
    chunks * stage.layers as f64 / v
}

/// Bytes of the device with most layers.
pub(crate) fn held(plan: &Plan, facts: Option<&EngineFacts>, pipe: &Pipe, stage: StageShare) -> StageBytes {
    let share = stage.layers as f64 / stage.of as f64;
    let bytes = |b: BufId| plan.buffer(b).largest_bytes(&plan.mesh) as f64;
    let elements = |b: BufId| plan.buffer(b).largest(&plan.mesh) as f64;
    let of_kind = |kind: ProgramInputKind| plan.program_inputs.iter().filter(move |i| i.kind == kind);
    let part = |i: &ProgramInput| if i.dims.contains(&stage.stacked) { share } else { 1.0 };
    let sum = |kind: ProgramInputKind, size: &dyn Fn(BufId) -> f64| {
        of_kind(kind).map(|i| size(i.buf) * part(i)).sum::<f64>()
    };
    let states = sum(ProgramInputKind::OptimizerState, &bytes);
    let (parameters, gradient) = match facts {
        // Copies in the half type are whole where the masters are split as the states of the optimizer are, of which there are
        // two.
        Some(f) if f.master => {
            (sum(ProgramInputKind::Param, &elements) * f.param_bytes + states / 2.0, f.grad_bytes)
        }
        Some(f) => (sum(ProgramInputKind::Param, &bytes), f.grad_bytes),
        None => (sum(ProgramInputKind::Param, &bytes), GRADIENT),
    };
    let inputs = input_dims(plan);
    let activates = |o: &Operand| o.dims.iter().any(|d| inputs.contains(d));
    let forward = plan.steps.iter().filter(|s| s.phase == Phase::Forward);
    let written: SortedMap<BufId, &Operand> =
        forward.flat_map(|s| &s.writes).filter(|o| activates(o)).map(|o| (o.buf, o)).collect();
    // Each stack has several buffers: those of an iteration and of the whole loop share their storage.
    let begins = plan.loops().into_iter().filter(|l| l.dim == stage.stacked).map(|l| &plan.steps[l.begin]);
    let stacks = begins.filter(|s| s.phase == Phase::Forward).flat_map(|s| &s.writes);
    let stacks = stacks.filter(|o| o.dims.contains(&stage.stacked) && activates(o));
    let kept: f64 = stacks.map(|o| bytes(o.buf)).sum();
    let others = written.values().filter(|o| !o.dims.contains(&stage.stacked));
    StageBytes {
        parameters,
        optimizer_state: states,
        gradients: sum(ProgramInputKind::Param, &elements) * gradient,
        residuals: kept / stage.of as f64 * layers_in_flight(pipe, stage),
        workspace: AT_ONCE * others.map(|o| bytes(o.buf)).fold(0.0, f64::max),
    }
}
