//! A pipeline projected from a Plan without one.
//!
//! The loop over parts of the batch has what leads to the loop over layers, that loop, what follows up to the loss, the loop of the backward pass, and
//! what follows. So the stages of a pipeline are known: `layers` turns of each loop, with what comes first on the first stage and what comes last
//! on the last. One Plan serves all numbers of stages, chunks and schedules. The axis of the pipeline is the outermost.

use crate::engine::{Engine, Facts};
use crate::estimate::{Held, PipeEstimate};
use crate::pipe_memory::{Stage, held};
use crate::pipeline::{StageTimes, play};
use crate::rates::Rates;
use crate::timeline::{Spent, spent};
use crate::work::{Family, Item, Loop, Program, Transfer, Work};
use meshwright_plan::actions::{Schedule, runs};
use meshwright_plan::{CollectiveKind, Dim, Operand, Phase, Plan, Prim, ProgramInputKind, Step};
use std::collections::BTreeSet;

/// A pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipe {
    /// Stages on different devices.
    pub stages: usize,
    /// The order of forward and backward passes.
    pub schedule: Schedule,
    /// Stages of a device.
    pub chunks: usize,
    /// Whether the embedding and the logits count as a layer each where layers are divided.
    pub ends: bool,
}

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
    /// Devices stand still while they send.
    blocking: bool,
    facts: Option<&'a Facts>,
    most: Stage,
}

/// The parts of a program that matter to a pipeline.
struct Parts<'p> {
    inner: Vec<&'p Item>,
    outside: Vec<&'p Item>,
    forward: usize,
    backward: usize,
    microbatches: usize,
}

impl<'a> Projection<'a> {
    /// The stages of a program.
    pub fn of(
        plan: &Plan,
        run: &Program,
        rates: &Rates<'_>,
        engine: &'a Engine,
        pipe: &'a Pipe,
    ) -> Result<Projection<'a>, String> {
        let parts = Parts::of(plan, run)?;
        let (Item::Loop(forward), Item::Loop(backward)) =
            (parts.inner[parts.forward], parts.inner[parts.backward])
        else {
            return Err("the program has no loops".into());
        };
        let layers = divided(forward.size, pipe)?;
        let facts = match engine {
            Engine::Foreign(facts) => Some(&**facts),
            _ => None,
        };
        let stacked = over(plan, forward.step).ok_or("the loop of layers has no dim")?;
        let activations = Activations::of(plan);
        let (forward, mut once) = activations.without_parameters(plan, forward, facts);
        let (backward, more) = activations.without_parameters(plan, backward, facts);
        once.extend(more);
        let span = |from: usize, to: usize, phase: Phase| {
            let of = |i: &&&Item| phase_of(i).is_none_or(|p| p == phase);
            Program { body: parts.inner[from..to].iter().filter(of).map(|i| (*i).clone()).collect() }
        };
        let (f, b, end) = (parts.forward, parts.backward, parts.inner.len());
        let time = |p: Program| spent(&p, rates);
        let turn = [turn(&forward, rates), turn(&backward, rates)];
        let most = (0..pipe.stages)
            .map(|r| layers.iter().skip(r).step_by(pipe.stages).sum::<usize>())
            .max()
            .unwrap_or(0);
        let window = (turn[0].seconds() + turn[1].seconds()) * most as f64 / pipe.chunks as f64;
        let outside = outside(
            plan,
            &parts,
            rates,
            Share { stacked, layers: most, of: forward.size },
            &once,
            facts,
            window,
        );
        let weights = weights(&backward, &activations, plan, rates);
        Ok(Projection {
            pipe,
            microbatches: parts.microbatches,
            layers,
            turn,
            weights,
            first: [time(span(0, f, Phase::Forward)), time(span(b + 1, end, Phase::Backward))],
            last: [time(span(f + 1, b, Phase::Forward)), time(span(f + 1, b, Phase::Backward))],
            outside,
            hop: hop(plan, &forward, stacked, &activations, rates, facts),
            most: Stage { layers: most, of: forward.size, stacked, microbatches: parts.microbatches },
            facts,
            blocking: facts.is_some_and(|f| !f.p2p_overlap || pipe.chunks == 1),
        })
    }

    /// Bytes of the device with most layers.
    pub(crate) fn held(&self, plan: &Plan) -> Held {
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
        let bubble = (end - all.seconds()).max(0.0);
        all.plus(1.0, &self.outside);
        let schedule = schedule.name().to_string();
        Ok((all, PipeEstimate { stages, schedule, chunks, microbatches: self.microbatches, bubble }))
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

/// Layers of each stage: equal numbers; what is left goes to stages in the middle. With `ends` the first and the last have one less.
fn divided(layers: usize, pipe: &Pipe) -> Result<Vec<usize>, String> {
    let stages = pipe.stages * pipe.chunks;
    let ends = usize::from(pipe.ends);
    let all = layers + 2 * ends;
    if all < stages || stages == 0 {
        return Err(format!("{layers} layers do not give {stages} stages a layer each"));
    }
    let mut each = vec![all / stages; stages];
    for left in 0..all % stages {
        let at = if stages > 2 { 1 + left % (stages - 2) } else { left };
        each[at] += 1;
    }
    each[0] -= ends.min(each[0]);
    each[stages - 1] -= ends.min(each[stages - 1]);
    Ok(each)
}

impl<'p> Parts<'p> {
    fn of(plan: &Plan, run: &'p Program) -> Result<Parts<'p>, String> {
        let in_parts = |i: &&Item| match (plan.microbatches, i) {
            (Some(m), Item::Loop(of)) => {
                over(plan, of.step) == Some(m.over) && of.body.iter().any(|(i, _)| has_products(i))
            }
            _ => false,
        };
        let found = run.body.iter().position(|i| in_parts(&i));
        let (inner, outside, microbatches): (Vec<&Item>, Vec<&Item>, usize) = match found
            .map(|at| &run.body[at])
        {
            Some(Item::Loop(of)) => {
                let outside = run.body.iter().enumerate().filter(|(k, _)| Some(*k) != found).map(|(_, i)| i);
                (of.body.iter().map(|(i, _)| i).collect(), outside.collect(), of.size)
            }
            _ => {
                let (outside, inner) = run.body.iter().partition(|i| phase_of(i) == Some(Phase::Update));
                (inner, outside, 1)
            }
        };
        let layers = |phase: Phase| {
            let is = |i: &&Item| {
                matches!(i, Item::Loop(of) if of.body.iter().any(|(i, _)| has_products(i)))
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

fn has_products(item: &Item) -> bool {
    match item {
        Item::Work(w) => !w.products.is_empty(),
        Item::Loop(of) => of.body.iter().any(|(i, _)| has_products(i)),
        Item::Start(_) | Item::Wait(_) => false,
    }
}

/// The phase of an item; of a loop that of its last products, since a backward pass may compute products of the forward pass again.
fn phase_of(item: &Item) -> Option<Phase> {
    match item {
        Item::Work(w) => Some(w.phase),
        Item::Start(t) => Some(t.phase),
        Item::Wait(_) => None,
        Item::Loop(of) => {
            of.body.iter().rev().filter(|(i, _)| has_products(i)).find_map(|(i, _)| phase_of(i))
        }
    }
}

/// A turn of a loop amid others.
fn turn(of: &Loop, rates: &Rates<'_>) -> Spent {
    let run = |size: usize| spent(&Program { body: vec![Item::Loop(Loop { size, ..of.clone() })] }, rates);
    let (once, twice) = (run(of.size), run(2 * of.size));
    let mut turn = Spent::default();
    turn.plus(1.0 / of.size as f64, &twice);
    turn.plus(-1.0 / of.size as f64, &once);
    turn
}

/// Seconds of a turn of the backward loop for gradients of weights: products without a dim of the inputs.
fn weights(of: &Loop, activations: &Activations, plan: &Plan, rates: &Rates<'_>) -> f64 {
    let of_weights = |item: &Item| match item {
        Item::Work(w) if w.family == Family::Matmul && !activations.has(&plan.steps[w.step].writes) => {
            let seconds = crate::timeline::Prices::work(rates, w);
            seconds.work + seconds.launch
        }
        _ => 0.0,
    };
    of.body.iter().map(|(item, _)| of_weights(item)).sum()
}

/// Dims by which activations are known: those of the inputs.
struct Activations(BTreeSet<Dim>);

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
        facts: Option<&Facts>,
    ) -> (Loop, Vec<&'l Transfer>) {
        let mut own = of.clone();
        if facts.is_none() {
            return (own, vec![]);
        }
        let is = |i: &Item| matches!(i, Item::Start(t) if !self.has(&plan.steps[t.step].reads));
        own.body.retain(|(i, _)| !is(i));
        let taken = of.body.iter().filter_map(|(i, _)| match i {
            Item::Start(t) if is(i) => Some(t),
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
    /// The part of the bytes of steps that belongs to the device.
    fn of(self, plan: &Plan, steps: &[usize], ends: f64) -> f64 {
        let bytes = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh) as f64;
        let part = |o: &Operand| {
            if o.dims.contains(&self.stacked) { self.layers as f64 / self.of as f64 } else { ends }
        };
        let operands = || steps.iter().filter_map(|s| plan.steps.get(*s)).flat_map(Step::all);
        let all: f64 = operands().map(bytes).sum();
        let own: f64 = operands().map(|o| bytes(o) * part(o)).sum();
        if all > 0.0 { own / all } else { 1.0 }
    }
}

/// What follows all microbatches: reductions of gradients, and the optimizer.
fn outside(
    plan: &Plan,
    parts: &Parts<'_>,
    rates: &Rates<'_>,
    share: Share,
    once: &[&Transfer],
    facts: Option<&Facts>,
    window: f64,
) -> Spent {
    // Of parameters outside of the loop a stage has the largest: the embedding or the head.
    let params = plan
        .program_inputs
        .iter()
        .filter(|i| i.kind == ProgramInputKind::Param && !i.dims.contains(&share.stacked));
    let sizes: Vec<f64> = params.map(|i| plan.buffer(i.buf).largest_bytes(&plan.mesh) as f64).collect();
    let ends = sizes.iter().copied().fold(0.0, f64::max) / sizes.iter().sum::<f64>().max(1.0);
    let mut body: Vec<Item> = vec![];
    let mut wire: Vec<Transfer> = once
        .iter()
        .map(|t| Transfer { bytes: t.bytes * share.layers as f64, flight: None, ..(*t).clone() })
        .collect();
    for item in &parts.outside {
        match item {
            Item::Work(w) => {
                let steps = if w.steps.is_empty() { vec![w.step] } else { w.steps.clone() };
                let part = share.of(plan, &steps, ends);
                let bytes = w.bytes * part;
                body.push(Item::Work(Box::new(Work {
                    bytes,
                    scalars: w.scalars.map(|s| s * part),
                    ..(**w).clone()
                })));
            }
            Item::Start(t) => {
                let bytes = t.bytes * share.of(plan, &[t.step], ends);
                let own = Transfer { bytes, ..t.clone() };
                if facts.is_some() { wire.push(own) } else { body.push(Item::Start(own)) }
            }
            other => body.push((*other).clone()),
        }
    }
    let mut all = spent(&Program { body }, rates);
    let wired = spent(&Program { body: wire.into_iter().map(Item::Start).collect() }, rates);
    // What an engine reduces beside a backward pass is hidden, but for one bucket, of which there is one for each layer.
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
    facts: Option<&Facts>,
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
