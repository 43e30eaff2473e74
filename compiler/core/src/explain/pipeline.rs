//! What `explain` says of a pipeline: its stages, the passes of each in order, and how long they wait for each other.

use meshwright_plan::actions::{Pass, PassRun, makespan};
use meshwright_plan::{DeviceBlocks, Extent, PipelinePasses, Plan, Prim, ProgramInputKind, StoredElements};
use serde::Serialize;

/// A stage of a pipeline, which is all stages of a device where it has several. All figures are of a device of it in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Its number.
    pub stage: usize,
    /// Iterations of the loop that it runs.
    pub layers: usize,
    /// Bytes of parameters.
    pub parameter_bytes: u64,
    /// Bytes of the optimizer's state.
    pub optimizer_state_bytes: u64,
    /// Most microbatches of which it holds residuals at once, each counted once for each chunk.
    pub in_flight: usize,
    /// Most bytes that it holds at once; where a kind of device is named, without what such a device never makes.
    pub peak_bytes: u64,
    /// Bytes of the arena of its launches, where a kind of device is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena_bytes: Option<u64>,
    /// Floating-point operations.
    pub flops: u64,
    /// Messages to other stages, of forward and backward passes.
    pub sends: usize,
    /// Their bytes.
    pub send_bytes: u64,
}

/// A pipeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineReport {
    /// The axis of its stages; several are joined by commas.
    pub axis: String,
    /// Its stages.
    pub stages: Vec<StageReport>,
    /// Parts of the batch that go through it.
    pub microbatches: usize,
    /// Stages of each device.
    pub chunks: usize,
    /// The order of passes.
    pub schedule: &'static str,
    /// The time in which a device waits, in parts of that in which it computes, where a pass takes as long as its floating-point
    /// operations say.
    pub bubble: f64,
    /// The same where passes of all stages take the same time.
    pub bubble_equal_stages: f64,
    /// The line that would share out the operations better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balanced: Option<String>,
    /// The passes of each stage in order.
    #[serde(skip)]
    pub runs: Vec<Vec<PassRun>>,
    /// Operations of a forward pass, a backward pass and gradients of weights of each stage, of one chunk.
    #[serde(skip)]
    pub costs: Vec<[u64; 3]>,
}

/// Reports the pipeline of a training step; `None` if it has none.
pub(super) fn pipeline(plan: &Plan) -> Option<PipelineReport> {
    let passes = plan.pipeline_passes()?;
    let p = passes.pipeline;
    let devices = plan.device_blocks();
    let costs: Vec<[u64; 3]> = devices.iter().map(|on| costs(plan, &passes, on)).collect();
    let all = devices.iter().enumerate();
    let stages: Vec<StageReport> = all.map(|(at, on)| stage(plan, &passes, (at, on))).collect();
    let idle = |of: &dyn Fn(usize, Pass) -> u64| {
        let busy: u64 = passes
            .runs
            .iter()
            .enumerate()
            .flat_map(|(at, list)| list.iter().map(move |r| of(at, r.pass)))
            .sum();
        let whole = makespan(&passes.runs, p.chunks, of).unwrap_or(0) as f64 * stages.len() as f64;
        if busy == 0 { 0.0 } else { whole / busy as f64 - 1.0 }
    };
    let apart = passes.loops.len() > 2;
    let equal = |pass: Pass| if pass == Pass::B && !apart { 2 } else { 1 };
    Some(PipelineReport {
        axis: p.axes.iter().map(|a| plan.mesh.name(*a)).collect::<Vec<_>>().join(","),
        microbatches: passes.microbatches,
        chunks: p.chunks,
        schedule: p.schedule.name(),
        bubble: idle(&|at, pass| costs[at][pass as usize]),
        bubble_equal_stages: idle(&|_, pass| equal(pass)),
        balanced: balanced(&passes, &stages, &costs),
        runs: passes.runs.clone(),
        costs,
        stages,
    })
}

fn stage(plan: &Plan, passes: &PipelinePasses<'_>, (at, on): (usize, &DeviceBlocks<'_>)) -> StageReport {
    let p = passes.pipeline;
    let held = |kind: ProgramInputKind| {
        plan.program_inputs.iter().filter(|i| i.kind == kind).map(|i| on.bytes(i.buf)).sum()
    };
    let flops = plan.steps.iter().zip(on.times()).map(|(s, times)| times * s.flops_on(plan, on)).sum();
    // The last stage keeps what the last forward pass gives, and the first one what the last backward pass does.
    let (mut sends, mut send_bytes) = (0, 0);
    for (pass, of) in &passes.loops {
        let ends = match pass {
            Pass::F => at + 1 == passes.stages,
            _ => at == 0,
        };
        let messages = passes.microbatches * (p.chunks - usize::from(ends));
        for step in plan.steps[of.begin..of.end].iter().filter(|s| matches!(s.prim, Prim::Send { .. })) {
            sends += messages;
            send_bytes += messages as u64 * step.reads.iter().map(|o| on.size(o.buf)).sum::<u64>();
        }
    }
    StageReport {
        stage: at,
        layers: on.len(&Extent::of(&plan.dims, p.dim, &p.axes)),
        parameter_bytes: held(ProgramInputKind::Param),
        optimizer_state_bytes: held(ProgramInputKind::OptimizerState),
        in_flight: meshwright_plan::actions::in_flight(&passes.runs[at]),
        peak_bytes: plan.peak_on(on, &StoredElements::new()),
        arena_bytes: None,
        flops,
        sends,
        send_bytes,
    }
}

/// Operations of each pass of a microbatch through a chunk of a stage.
fn costs(plan: &Plan, passes: &PipelinePasses<'_>, on: &DeviceBlocks<'_>) -> [u64; 3] {
    let times = on.times();
    let each = (passes.microbatches * passes.pipeline.chunks) as u64;
    let mut all = [0; 3];
    for (pass, of) in &passes.loops {
        let steps = of.begin + 1..of.end;
        all[*pass as usize] =
            steps.map(|at| times[at] * plan.steps[at].flops_on(plan, on)).sum::<u64>() / each;
    }
    all
}

/// The line that shares out the layers so that the device with most operations has fewest, where that differs from how they are
/// shared out. A layer takes what it takes on the device where it takes least; what a device computes beside its layers stays
/// there, on the first of all stages or on the last one. Of a device's stages the one that then has fewest operations takes the
/// next layer.
fn balanced(passes: &PipelinePasses<'_>, devices: &[StageReport], costs: &[[u64; 3]]) -> Option<String> {
    let (count, chunks) = (devices.len(), passes.pipeline.chunks);
    let layers = |at: usize| devices[at].layers as u64;
    let total = |at: usize| costs[at].iter().sum::<u64>() * chunks as u64;
    let with = (0..count).filter(|at| layers(*at) > 0);
    let each = with.map(|at| total(at) / layers(at)).min()?;
    let beside = |at: usize| total(at).saturating_sub(each * layers(at));
    // Operations of each stage, in the order of the layers: that of chunk c on device d is stage c times all devices plus d.
    let mut stages: Vec<(usize, u64)> = vec![(0, 0); count * chunks];
    for at in 0..count {
        let end = if at + 1 == count { count * (chunks - 1) } else { 0 };
        stages[end + at].1 = beside(at);
    }
    let of = |stages: &[(usize, u64)], at: usize| {
        (at..stages.len()).step_by(count).map(|s| stages[s].1).sum::<u64>()
    };
    for _ in 0..devices.iter().map(|d| d.layers).sum::<usize>() {
        let device = (0..count).min_by_key(|at| of(&stages, *at))?;
        let stage = (device..stages.len()).step_by(count).min_by_key(|s| stages[*s].1)?;
        stages[stage] = (stages[stage].0 + 1, stages[stage].1 + each);
    }
    let now = (0..count).map(|at| beside(at) + each * layers(at)).max()?;
    let then = (0..count).map(|at| of(&stages, at)).max()?;
    let list: Vec<String> = stages.iter().map(|s| s.0.to_string()).collect();
    (then < now).then(|| format!("stages {}", list.join(", ")))
}
