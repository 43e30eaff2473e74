//! A pipeline projected from a Plan without one.
//!
//! The loop over parts of the batch has what leads to the loop over layers, that loop, what follows up to the loss, the loop of
//! the backward pass, and what follows. So the stages of a pipeline are known: `layers` turns of each loop, with what comes first
//! on the first stage and what comes last on the last. One Plan serves all numbers of stages, chunks and schedules. The axis of
//! the pipeline is the outermost.

use crate::engine::{EngineFacts, EngineKind};
use crate::pipe::{Pipe, PipeEstimate, StageBytes, StageShare};
use crate::pipe_memory::{GRADIENT, held};
use crate::pipeline::{StageTimes, play};
use crate::rates::Rates;
use crate::timeline::{Spent, spent};
use crate::work::{DeviceWork, KernelWork, Loop, Transfer, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::actions::runs;
use meshwright_plan::{CollectiveKind, Dim, Operand, Phase, Plan, Prim, ProgramInputKind, Step};
use meshwright_sorted::SortedSet;

/// The stages of a pipeline with their times.
pub struct Projection<'a> {
    pipe: &'a Pipe,
    microbatches: usize,
    /// Layers of each stage.
    layers: Vec<usize>,
    /// A turn of the loop, forward and backward, and the part of the latter for gradients of weights.
    turn: [Spent; 2],
    weights: f64,
    /// Before the loop, forward and backward: on the first stage.
    first: [Spent; 2],
    /// After the loop, forward and backward: on the last stage.
    last: [Spent; 2],
    /// What follows all microbatches, on the device with most layers.
    outside: Spent,
    hop: f64,
    /// Seconds of the sums over all stages of gradients of parameters outside of the loop, which each stage has.
    sums: f64,
    /// Devices stand still while they send.
    blocking: bool,
    facts: Option<&'a EngineFacts>,
    most: StageShare,
}

/// The parts of a program that matter to a pipeline.
struct Parts<'p> {
    inner: Vec<&'p WorkItem>,
    outside: Vec<&'p WorkItem>,
    forward: usize,
    backward: usize,
    microbatches: usize,
}

impl<'a> Projection<'a> {
    /// The stages of a program.
    pub fn of(
        plan: &Plan,
        run: &DeviceWork,
        rates: &Rates<'_>,
        engine: &'a EngineKind,
        pipe: &'a Pipe,
    ) -> Result<Projection<'a>, String> {
        let parts = Parts::of(plan, run)?;
        let (WorkItem::Loop(forward), WorkItem::Loop(backward)) =
            (parts.inner[parts.forward], parts.inner[parts.backward])
        else {
            return Err("the program has no loops".into());
        };
        let layers = pipe.divided(forward.size)?;
        let facts = match engine {
            EngineKind::Foreign(facts) => Some(&**facts),
            _ => None,
        };
        let stacked = over(plan, forward.step).ok_or("the loop of layers has no dim")?;
        let activations = Activations::of(plan);
        let (forward, mut once) = activations.without_parameters(plan, forward, facts);
        let (backward, more) = activations.without_parameters(plan, backward, facts);
        once.extend(more);
        let share = |layers: usize| Share { stacked, layers, of: forward.size };
        let ends = StageEnds::of(plan, &parts, share(1));
        let time = |items: &[WorkItem]| spent(&DeviceWork { body: items.to_vec() }, rates);
        let mut turn = [turn(&forward, rates), turn(&backward, rates)];
        turn.iter_mut().zip(&ends.of_layers).for_each(|(turn, items)| turn.plus(1.0, &time(items)));
        let ranks = (0..pipe.stages).map(|r| layers.iter().skip(r).step_by(pipe.stages).sum::<usize>());
        let most = ranks.max().unwrap_or(0);
        let window = (turn[0].seconds() + turn[1].seconds()) * most as f64 / pipe.chunks as f64;
        let weights = weights(&backward, &activations, plan, rates);
        Ok(Projection {
            pipe,
            microbatches: parts.microbatches,
            layers,
            turn,
            weights,
            first: [time(&ends.first[0]), time(&ends.first[1])],
            last: [time(&ends.last[0]), time(&ends.last[1])],
            outside: outside(plan, &parts, rates, share(most), &once, facts, window),
            sums: match facts {
                None => rates.stages_sum(gradients_outside(plan, stacked), pipe.stages),
                // Of other engines the first and the last stage have parameters of their own.
                Some(_) => 0.0,
            },
            hop: hop(plan, &forward, stacked, &activations, rates, facts),
            most: StageShare { layers: most, of: forward.size, stacked, microbatches: parts.microbatches },
            facts,
            blocking: facts.is_some_and(|f| !f.p2p_overlap || pipe.chunks == 1),
        })
    }

    /// Bytes of the device with most layers.
    pub(crate) fn held(&self, plan: &Plan) -> StageBytes {
        held(plan, self.facts, self.pipe, self.most)
    }

    /// Seconds of the step of the device that ends last, and the pipeline.
    pub fn played(&self) -> Result<(Spent, PipeEstimate), String> {
        let Pipe { stages, schedule, chunks, .. } = *self.pipe;
        let last = stages * chunks - 1;
        let times: Vec<StageTimes> = (0..=last)
            .map(|k| {
                let [forward, backward] = [0, 1].map(|way| self.stage(k, way).seconds());
                let weight = self.layers[k] as f64 * self.weights;
                StageTimes { forward, backward: backward - weight, weight }
            })
            .collect();
        let lists = runs(schedule, stages, chunks, self.microbatches)?;
        let played = play(&lists, &times, self.hop, self.blocking)?;
        let end = played.ends.iter().copied().fold(0.0, f64::max);
        let rank = (0..stages).max_by(|a, b| played.busy[*a].total_cmp(&played.busy[*b])).unwrap_or(0);
        let mut all = Spent::default();
        for k in (rank..=last).step_by(stages) {
            for way in [0, 1] {
                all.plus(self.microbatches as f64, &self.stage(k, way));
            }
        }
        let bubble = (end - all.seconds()).max(0.0) + self.sums;
        all.plus(1.0, &self.outside);
        let schedule = schedule.name().to_string();
        let (microbatches, projected) = (self.microbatches, true);
        Ok((all, PipeEstimate { stages, schedule, chunks, microbatches, bubble, projected }))
    }

    /// A microbatch on a stage, forward or backward.
    fn stage(&self, k: usize, way: usize) -> Spent {
        let mut all = Spent::default();
        all.plus(self.layers[k] as f64, &self.turn[way]);
        if k == 0 {
            all.plus(1.0, &self.first[way]);
        }
        if k + 1 == self.layers.len() {
            all.plus(1.0, &self.last[way]);
        }
        all
    }
}

/// Costs of a part of the batch besides its loops of layers, forward and backward.
#[derive(Default)]
struct StageEnds {
    /// On the first stage.
    first: [Vec<WorkItem>; 2],
    /// On the last stage.
    last: [Vec<WorkItem>; 2],
    /// For each layer: what is done with stacks of all layers, as where gradients are added up.
    of_layers: [Vec<WorkItem>; 2],
}

impl StageEnds {
    fn of(plan: &Plan, parts: &Parts<'_>, layer: Share) -> StageEnds {
        let mut ends = StageEnds::default();
        for (at, item) in
            parts.inner.iter().enumerate().filter(|(at, _)| *at != parts.forward && *at != parts.backward)
        {
            let way = usize::from(match phase_of(item) {
                Some(phase) => phase != Phase::Forward,
                None => at > parts.backward,
            });
            let place =
                if (parts.forward..parts.backward).contains(&at) { &mut ends.last } else { &mut ends.first };
            let WorkItem::Work(work) = item else {
                place[way].push((*item).clone());
                continue;
            };
            let stacked = layer.of_stacks(plan, &work.all_steps());
            place[way].push(WorkItem::Work(Box::new(work.scaled(1.0 - stacked))));
            if stacked > 0.0 {
                let own = work.scaled(stacked * layer.layers as f64 / layer.of as f64);
                ends.of_layers[way].push(WorkItem::Work(Box::new(KernelWork { kernels: 1.0, ..own })));
            }
        }
        ends
    }
}

impl<'p> Parts<'p> {
    fn of(plan: &Plan, run: &'p DeviceWork) -> Result<Parts<'p>, String> {
        let in_parts = |i: &&WorkItem| match (plan.microbatches, i) {
            (Some(m), WorkItem::Loop(of)) => {
                over(plan, of.step) == Some(m.over) && of.body.iter().any(|(i, _)| has_products(i))
            }
            _ => false,
        };
        let found = run.body.iter().position(|i| in_parts(&i));
        let (inner, outside, microbatches): (Vec<&WorkItem>, Vec<&WorkItem>, usize) = match found
            .map(|at| &run.body[at])
        {
            Some(WorkItem::Loop(of)) => {
                let outside = run.body.iter().enumerate().filter(|(k, _)| Some(*k) != found).map(|(_, i)| i);
                (of.body.iter().map(|(i, _)| i).collect(), outside.collect(), of.size)
            }
            _ => {
                let (outside, inner) = run.body.iter().partition(|i| phase_of(i) == Some(Phase::Update));
                (inner, outside, 1)
            }
        };
        let layers = |phase: Phase| {
            let is = |i: &&WorkItem| {
                matches!(i, WorkItem::Loop(of) if of.body.iter().any(|(i, _)| has_products(i)))
                    && phase_of(i) == Some(phase)
            };
            inner.iter().position(is)
        };
        let (forward, backward) = (layers(Phase::Forward), layers(Phase::Backward));
        let (Some(forward), Some(backward)) = (forward, backward) else {
            return Err("a pipeline needs a `repeat` over layers with matrix products".into());
        };
        Ok(Parts { inner, outside, forward, backward, microbatches })
    }
}

fn over(plan: &Plan, step: usize) -> Option<Dim> {
    match plan.steps.get(step)?.prim {
        Prim::Repeat { dim, .. } => Some(dim),
        _ => None,
    }
}

fn has_products(item: &WorkItem) -> bool {
    match item {
        WorkItem::Work(w) => !w.products.is_empty(),
        WorkItem::Loop(of) => of.body.iter().any(|(i, _)| has_products(i)),
        WorkItem::Start(_) | WorkItem::Wait(_) => false,
    }
}

/// The phase of an item; of a loop that of its last products, since a backward pass may compute products of the forward pass
/// again.
fn phase_of(item: &WorkItem) -> Option<Phase> {
    match item {
        WorkItem::Work(w) => Some(w.phase),
        WorkItem::Start(t) => Some(t.phase),
        WorkItem::Wait(_) => None,
        WorkItem::Loop(of) => {
            of.body.iter().rev().filter(|(i, _)| has_products(i)).find_map(|(i, _)| phase_of(i))
        }
    }
}

/// A turn of a loop amid others.
fn turn(of: &Loop, rates: &Rates<'_>) -> Spent {
    let run =
        |size: usize| spent(&DeviceWork { body: vec![WorkItem::Loop(Loop { size, ..of.clone() })] }, rates);
    let (once, twice) = (run(of.size), run(2 * of.size));
    let mut turn = Spent::default();
    turn.plus(1.0 / of.size as f64, &twice);
    turn.plus(-1.0 / of.size as f64, &once);
    turn
}

/// Seconds of a turn of the backward loop for gradients of weights: products without a dim of the inputs.
fn weights(of: &Loop, activations: &Activations, plan: &Plan, rates: &Rates<'_>) -> f64 {
    let of_weights = |item: &WorkItem| match item {
        WorkItem::Work(w)
            if w.family == KernelFamily::Matmul && !activations.has(&plan.steps[w.step].writes) =>
        {
            let seconds = crate::timeline::Prices::work(rates, w);
            seconds.work + seconds.launch
        }
        _ => 0.0,
    };
    of.body.iter().map(|(item, _)| of_weights(item)).sum()
}

/// Dims by which activations are known: those of the inputs.
struct Activations(SortedSet<Dim>);

impl Activations {
    fn of(plan: &Plan) -> Activations {
        Activations(crate::foreign::input_dims(plan))
    }

    fn has(&self, operands: &[Operand]) -> bool {
        operands.iter().any(|o| o.dims.iter().any(|d| self.0.contains(d)))
    }

    /// The loop of another engine without collectives of parameters and gradients, which it does once a step; and these.
    fn without_parameters<'l>(
        &self,
        plan: &Plan,
        of: &'l Loop,
        facts: Option<&EngineFacts>,
    ) -> (Loop, Vec<&'l Transfer>) {
        let mut own = of.clone();
        if facts.is_none() {
            return (own, vec![]);
        }
        let is = |i: &WorkItem| matches!(i, WorkItem::Start(t) if !self.has(&plan.steps[t.step].reads));
        own.body.retain(|(i, _)| !is(i));
        let taken = of.body.iter().filter_map(|(i, _)| match i {
            WorkItem::Start(t) if is(i) => Some(t),
            _ => None,
        });
        (own, taken.collect())
    }
}

/// The part of the layers that a device has.
#[derive(Clone, Copy)]
struct Share {
    stacked: Dim,
    layers: usize,
    of: usize,
}

impl Share {
    /// The part of the bytes of steps that are in stacks of all layers.
    fn of_stacks(self, plan: &Plan, steps: &[usize]) -> f64 {
        let bytes = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh) as f64;
        let operands = || steps.iter().filter_map(|s| plan.steps.get(*s)).flat_map(Step::all);
        let all: f64 = operands().map(bytes).sum();
        let stacks: f64 = operands().filter(|o| o.dims.contains(&self.stacked)).map(bytes).sum();
        if all > 0.0 { stacks / all } else { 0.0 }
    }

    /// The part of the bytes of steps that belongs to the device: its layers, and `ends` of what is in no layer.
    fn of(self, plan: &Plan, steps: &[usize], ends: f64) -> f64 {
        let stacks = self.of_stacks(plan, steps);
        stacks * self.layers as f64 / self.of as f64 + (1.0 - stacks) * ends
    }
}

/// Bytes of the gradients of parameters outside of the loop over a dim.
fn gradients_outside(plan: &Plan, stacked: Dim) -> f64 {
    let params = plan.program_inputs.iter().filter(|i| i.kind == ProgramInputKind::Param);
    let outside = params.filter(|i| !i.dims.contains(&stacked));
    outside.map(|i| plan.buffer(i.buf).largest(&plan.mesh) as f64 * GRADIENT).sum()
}

/// What follows all microbatches: reductions of gradients, and the optimizer.
fn outside(
    plan: &Plan,
    parts: &Parts<'_>,
    rates: &Rates<'_>,
    share: Share,
    once: &[&Transfer],
    facts: Option<&EngineFacts>,
    window: f64,
) -> Spent {
    // Of parameters outside of the loop a stage has the largest: the embedding or the head.
    let params = plan
        .program_inputs
        .iter()
        .filter(|i| i.kind == ProgramInputKind::Param && !i.dims.contains(&share.stacked));
    let sizes: Vec<f64> = params.map(|i| plan.buffer(i.buf).largest_bytes(&plan.mesh) as f64).collect();
    let ends = sizes.iter().copied().fold(0.0, f64::max) / sizes.iter().sum::<f64>().max(1.0);
    let mut body: Vec<WorkItem> = vec![];
    let mut wire: Vec<Transfer> = once
        .iter()
        .map(|t| Transfer { bytes: t.bytes * share.layers as f64, flight: None, ..(*t).clone() })
        .collect();
    for item in &parts.outside {
        match item {
            WorkItem::Work(w) => {
                let part = share.of(plan, &w.all_steps(), ends);
                body.push(WorkItem::Work(Box::new(w.scaled(part))));
            }
            WorkItem::Start(t) => {
                let bytes = t.bytes * share.of(plan, &[t.step], ends);
                let own = Transfer { bytes, ..t.clone() };
                if facts.is_some() { wire.push(own) } else { body.push(WorkItem::Start(own)) }
            }
            other => body.push((*other).clone()),
        }
    }
    let mut all = spent(&DeviceWork { body }, rates);
    let wired = spent(&DeviceWork { body: wire.into_iter().map(WorkItem::Start).collect() }, rates);
    // Reductions during a backward pass are hidden, but for one bucket. Each layer has a bucket.
    let hidden = if facts.is_some_and(|f| f.dp_overlap) { window } else { 0.0 };
    let whole = wired.seconds();
    let shown = (whole / share.layers.max(1) as f64).max(whole - hidden);
    all.plus(if whole > 0.0 { shown / whole } else { 0.0 }, &wired);
    all
}

/// Seconds from a stage to the next: what the loop carries from iteration to iteration.
fn hop(
    plan: &Plan,
    of: &Loop,
    stacked: Dim,
    activations: &Activations,
    rates: &Rates<'_>,
    facts: Option<&EngineFacts>,
) -> f64 {
    let Some(begin) = plan.steps.get(of.step) else { return 0.0 };
    let carried = begin
        .writes
        .iter()
        .filter(|o| !o.dims.contains(&stacked) && activations.has(std::slice::from_ref(o)));
    let mut seconds = 0.0;
    for o in carried {
        let buffer = plan.buffer(o.buf);
        let bytes = buffer.largest_bytes(&plan.mesh) as f64;
        // Devices that hold the same send a part each, and gather it on the other side.
        let same: Vec<_> =
            plan.mesh.iter().filter(|a| plan.mesh.size(*a) > 1 && !buffer.is_split_over(*a)).collect();
        let members: usize = same.iter().map(|a| plan.mesh.size(*a)).product();
        if facts.is_none() || members == 1 {
            seconds += rates.hop(bytes);
            continue;
        }
        let (kind, phase) = (CollectiveKind::AllGather, Phase::Forward);
        let gather = Transfer { step: of.step, kind, axes: same, bytes, phase, flight: None, pieces: None };
        seconds += rates.hop(bytes / members as f64) + rates.collective(&gather).seconds;
    }
    seconds
}
