//! Random programs under random layouts equal one device: the test of interplay. One device equals what oracles compute, as
//! threads launch a program and, of every fourth, as GPUs do.
//!
//! 300 seeds in a normal run, 10,000 with `LONG=1`; `SEED=n` runs one and prints it, `SEED=n..m` runs those between.

pub(crate) mod layouts;
mod program;

use crate::devices::{Refused, Tensors, cluster_of, plan, provider, say};
use crate::oracle::{Bound, close_from, from_host, to_host, walk};
use crate::report;
use crate::rng::{chosen, seeds};
use meshwright_core::layout::Layout;
use meshwright_core::passes::unroll::unrolled;
use meshwright_core::program::ParamDecl;
use meshwright_core::{OutputKind, StepGraph, StepOutput, compile, print, training_step};
use meshwright_exec::DeviceKind;
use meshwright_ops::{F64Tensor, Graph, Id, InputOpKind, Kind};
use meshwright_plan::{DType, Dim, Dims, Phase, Plan};
use meshwright_sorted::{SortedMap, SortedSet};
use program::APART;
pub(crate) use program::Random;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Seed of the random values of a run.
const SEED: u64 = 1;
/// Steps of each run.
const STEPS: u64 = 2;
/// Within the largest magnitude of each value. Programs are a dozen ops deep and then differentiated.
const TOLERANCE: f64 = 1e-10;
/// Magnitudes below this are taken as this: gradients may be nothing but rounding.
const LEAST: f64 = 1e-3;

/// Values by name: outputs of each step, and parameters and moments at its end.
pub(crate) type Trace = Vec<SortedMap<String, (DType, F64Tensor)>>;

/// What became of a seed.
enum End {
    /// It ran and is equal; with how many granted gathers, how many collectives, and whether it took its batch in parts.
    Equal { granted: usize, collectives: usize, parts: bool },
    /// The layout is an error.
    Refused,
    /// It is an error although the forward pass alone has a Plan.
    Unjust(String),
    /// What it means is chance.
    Chance,
}

/// Runs a plan from given parameters.
pub(crate) fn run(plan: Plan, r: &Random) -> Result<Trace, String> {
    run_on(meshwright_cpu::device(), plan, r)
}

/// The same on devices of some kind.
pub(crate) fn run_on(kind: DeviceKind, plan: Plan, r: &Random) -> Result<Trace, String> {
    let text = |e: meshwright_exec::ExecError| e.to_string();
    let outputs: Vec<(String, Vec<Dim>)> =
        plan.outputs.iter().map(|o| (o.name.clone(), o.dims.clone())).collect();
    let states: Vec<(String, Vec<Dim>)> = plan
        .program_inputs
        .iter()
        .filter(|l| l.init.is_some())
        .map(|l| (l.name.clone(), l.dims.clone()))
        .collect();
    let mut devices = cluster_of(&plan.mesh, kind);
    let program = devices.load(Arc::new(plan)).map_err(text)?;
    devices.init_state(program, SEED).map_err(text)?;
    for p in &r.program.params {
        if states.iter().any(|s| s.0 == p.path) {
            let ty = r.program.graph.ty(p.id);
            devices.set_state(&p.path, &to_host(&r.bound[&p.id], ty.dtype, &ty.dims)).map_err(text)?;
        }
    }
    let inputs: Tensors = (r.program.inputs.iter())
        .map(|(decl, id, _)| (decl.name.clone(), to_host(&r.bound[id], decl.dtype, &decl.dims)))
        .collect();
    let inputs = provider(inputs);
    let mut trace = Trace::new();
    for step in 1..=STEPS {
        let mut values = SortedMap::new();
        let out = devices.run(program, step, &inputs).map_err(text)?.outputs;
        for (name, dims) in &outputs {
            let x = out.get(name).ok_or_else(|| format!("no output `{name}`"))?;
            values.insert(name.clone(), (x.dtype(), from_host(x, dims)));
        }
        for (name, dims) in &states {
            let x = devices.state(name).map_err(text)?;
            values.insert(format!("next {name}"), (x.dtype(), from_host(&x, dims)));
        }
        trace.push(values);
    }
    Ok(trace)
}

/// The values of the leaves in another graph of the program, where loops are written out: there values have other numbers, and
/// leaves are known by what they are.
pub(crate) fn bound_in(g: &Graph, r: &Random) -> Bound {
    let given: Vec<(Kind, &F64Tensor)> =
        r.bound.iter().map(|(id, v)| (r.program.graph.node(*id).op.kind(), v)).collect();
    let value = |id: Id| {
        let kind = g.node(id).op.kind();
        given.iter().find(|(k, _)| *k == kind).map(|(_, value)| (id, (*value).clone()))
    };
    g.ids().filter_map(value).collect()
}

/// The first step by oracles alone, with all iterations of each loop: what a loop leaves out, nothing reads.
fn meaning(step: &StepGraph, r: &Random) -> Trace {
    let loops = !step.graph.repeats.is_empty();
    let mut step = step.clone();
    step.graph.repeats.ids().for_each(|of| step.graph.repeats[of].from = 0);
    let step = &if loops { unrolled(&step) } else { step };
    let g = &step.graph;
    let mut bound = if loops { bound_in(g, r) } else { r.bound.clone() };
    for id in g.ids() {
        let dims = &g.ty(id).dims;
        match g.node(id).op.kind() {
            Kind::Input(InputOpKind::OptimizerState { .. }) => {
                bound.insert(id, F64Tensor::build(&g.dims, dims, |_| 0.0))
            }
            Kind::Input(InputOpKind::StepNumber) => bound.insert(id, F64Tensor::scalar(1.0)),
            _ => None,
        };
    }
    let values = walk(g, &bound);
    let of = |id: Id| (g.ty(id).dtype, values[id.0 as usize].clone());
    let mut out = SortedMap::new();
    for goal in &step.outputs {
        let name = match goal.kind {
            OutputKind::Next(_) => format!("next {}", goal.name),
            _ => goal.name.clone(),
        };
        out.insert(name, of(goal.id));
    }
    vec![out]
}

/// Whether LAMB steps along a gradient that is zero but for rounding: it gives every step the length of its parameter, that of
/// nothing too.
fn steps_by_chance(first: &SortedMap<String, (DType, F64Tensor)>, r: &Random) -> bool {
    let lamb = r.program.train.as_ref().is_some_and(|t| t.optimizers.iter().any(|o| o.def.name == "lamb"));
    let mean = |p: &ParamDecl| first.get(&format!("next {}/m", p.path));
    let vanishes = |(_, m): &(DType, F64Tensor)| {
        m.data.iter().all(|v| v.abs() < APART) && m.data.iter().any(|v| *v != 0.0)
    };
    lamb && r.program.params.iter().filter(|p| p.no_decay).filter_map(mean).any(vanishes)
}

/// Whether everything in `want` is the same in `got`.
pub(crate) fn equal(got: &Trace, want: &Trace) -> Result<(), String> {
    for (step, (g, w)) in got.iter().zip(want).enumerate() {
        for (name, (dtype, want)) in w {
            let at = |e: String| format!("step {}, `{name}`: {e}", step + 1);
            let (_, got) = g.get(name).ok_or_else(|| at("is missing".into()))?;
            let tolerance = if dtype.is_float() || dtype.is_pair() { TOLERANCE } else { 0.0 };
            close_from(&got.ordered(&want.dims).data, &want.data, tolerance, LEAST).map_err(at)?;
        }
    }
    Ok(())
}

/// The first value that one device computes otherwise than it means, each computed by itself: where to look first.
fn first_wrong(step: &StepGraph, r: &Random) -> Option<String> {
    r.program.graph.ids().find_map(|id| {
        let outputs = vec![StepOutput { name: "it".into(), id, kind: OutputKind::Output }];
        let alone = StepGraph { outputs, ..step.clone() };
        let got = run(plan(&alone, &Layout::default(), false).ok()?.plan, r).ok()?;
        let e = equal(&got, &meaning(&alone, r)).err()?;
        Some(format!("value {} is the first that is wrong by itself: {e}", id.0))
    })
}

/// A step with its outputs of the forward pass alone.
fn forward(step: &StepGraph) -> StepGraph {
    let mut alone = StepGraph { program: "forward", ..step.clone() };
    let of_model = |o: &StepOutput| matches!(o.kind, OutputKind::Scalar | OutputKind::Output);
    alone.outputs.retain(|o| of_model(o) && step.graph.node(o.id).origin.phase == Phase::Forward);
    alone
}

/// The gather that is refused.
fn refused(step: &StepGraph, layout: &Layout) -> String {
    let found = compile(step, layout, &|_| 0, &mut |_, _| {}).1;
    found.into_iter().map(|d| d.message).collect()
}

/// A layout in words.
fn told(l: &Layout, dims: &Dims) -> String {
    let rules: Vec<String> = l.rules.iter().map(|rule| say(rule, &l.mesh, dims)).collect();
    let (mesh, rules, parts) = (l.mesh.describe(), rules.join("; "), l.microbatches.map(|p| p.0));
    let lengths = l.pipeline.as_ref().map(|p| &p.lengths);
    format!(
        "{mesh} with `{rules}`, recompute {:?}, keep {:?}, in parts {parts:?}, reduced {:?}, stages {lengths:?} {}",
        l.recompute,
        l.keep,
        l.reduce_when,
        l.order.schedule().name()
    )
}

/// A step on a thread, and of every fourth program as a GPU launches it.
fn on_one_device(seed: u64, step: &StepGraph, r: &Random) -> Result<(Trace, Option<Trace>), String> {
    let single = plan(step, &Layout::default(), false).map_err(|e| format!("on one device: {e:?}"))?.plan;
    let launched = seed.is_multiple_of(4).then(|| run_on(meshwright_burn::reference(), single.clone(), r));
    let launched = launched.transpose().map_err(|e| format!("as a GPU launches it: {e}"))?;
    Ok((run(single, r).map_err(|e| format!("on one device: {e}"))?, launched))
}

/// One program under one layout.
fn trial(seed: u64, r: &Random, place: Place, show: bool) -> Result<End, String> {
    let Some(mut step) = training_step(&r.program) else { return Err("no training step".into()) };
    step.outputs.push(StepOutput { name: "some value".into(), id: r.watched, kind: OutputKind::Output });
    let placing = place(seed, r);
    let mut layout = placing.layout;
    let told = |l: &Layout| told(l, &step.graph.dims);
    if show {
        report(&format!("{}\n{}", print::graph(&step), told(&layout)));
    }
    let (alone, launched) = on_one_device(seed, &step, r)?;
    let meant = meaning(&step, r);
    if meant.first().is_some_and(|first| steps_by_chance(first, r)) {
        return Ok(End::Chance);
    }
    if let Err(e) = equal(&alone, &meant) {
        let place = first_wrong(&step, r).unwrap_or_else(|| "each value is right by itself".into());
        return Err(format!("one device is not what it means: {e}\n    {place}"));
    }
    if let Some(e) = launched.and_then(|launched| equal(&launched, &alone).err()) {
        return Err(format!("as a GPU launches it: {e}"));
    }
    let mut asked = step.clone();
    let mut alone = alone;
    if layout.microbatches.is_some() || layout.pipeline.is_some() {
        let example = r.program.inputs.first().map(|i| i.0.dims[0]);
        let whole = |o: &StepOutput| {
            o.kind != OutputKind::Output || !example.is_some_and(|d| step.graph.ty(o.id).has(d))
        };
        asked.outputs.retain(whole);
        if asked.outputs.iter().all(|o| o.kind != OutputKind::Output) {
            alone.iter_mut().for_each(|values| drop(values.remove("some value")));
        }
        // Of what needs all examples at once there are no parts.
        let plain = Layout { rules: vec![], pipeline: None, ..layout.clone() };
        if let Err(Refused::Layout(codes)) = plan(&asked, &plain, true)
            && codes.iter().all(|c| c == "E0313")
        {
            layout.microbatches = None;
        }
    }
    let parts = layout.microbatches.is_some();
    let mut planned = plan(&asked, &layout, placing.grant);
    for k in (0..layout.rules.len()).rev() {
        match &planned {
            // Two strict rules want one axis: let one more yield.
            Err(Refused::Layout(codes)) if codes.iter().any(|c| c == "E0304") => layout.rules[k].free = true,
            _ => break,
        }
        planned = plan(&asked, &layout, placing.grant);
    }
    match planned {
        Ok(p) => {
            let (granted, collectives) = (p.granted, p.collectives);
            if show {
                report(&print::plan(&p.plan));
            }
            let many = run(p.plan, r).map_err(|e| format!("{}: {e}", told(&layout)))?;
            equal(&many, &alone).map_err(|e| format!("{}: {e}", told(&layout)))?;
            Ok(End::Equal { granted, collectives, parts })
        }
        // A loop whose iterations cannot be stages, or examples that cannot be apart.
        Err(Refused::Layout(codes))
            if layout.pipeline.is_some()
                && codes.iter().all(|c| ["E0313", "E0315"].contains(&c.as_str())) =>
        {
            Ok(End::Refused)
        }
        Err(Refused::Layout(codes)) if !placing.grant && codes.iter().all(|c| c == "E0310") => {
            if plan(&forward(&asked), &layout, false).is_err() {
                return Ok(End::Refused);
            }
            Ok(End::Unjust(format!(
                "{}: the forward pass is allowed, and {}",
                told(&layout),
                refused(&asked, &layout)
            )))
        }
        Err(e) => Err(format!("{}: {e:?}", told(&layout))),
    }
}

#[test]
fn random_programs_under_random_layouts_equal_one_device() {
    count_trials("random programs", seeds(300, 10_000), &[], (program::random, layouts::random));
}

/// A layout for a program, by a seed.
pub(crate) type Place = fn(u64, &Random) -> layouts::Placing;

/// Runs the programs of these seeds, each under a layout of its own; and of those that found a fault, where no others are chosen.
pub(crate) fn count_trials(
    what: &str,
    seeds: Range<u64>,
    found: &[u64],
    (random, place): (fn(u64) -> Random, Place),
) {
    let begin = Instant::now();
    let (one, found) = (seeds.end - seeds.start == 1, if chosen() { &[] } else { found });
    let seeds: SortedSet<u64> = seeds.chain(found.iter().copied()).collect();
    let (mut equal, mut refused, mut chance, mut wrong) = (0, 0, 0, Vec::new());
    let (mut with_granted, mut all_collectives, mut in_parts, mut unjust) = (0, 0, 0, Vec::new());
    for seed in seeds {
        match trial(seed, &random(seed), place, one) {
            Ok(End::Equal { granted, collectives, parts }) => {
                in_parts += usize::from(parts);
                equal += 1;
                with_granted += usize::from(granted > 0);
                all_collectives += collectives;
            }
            Ok(End::Refused) => refused += 1,
            Ok(End::Unjust(e)) => unjust.push(format!("SEED={seed}: {e}")),
            Ok(End::Chance) => chance += 1,
            Err(e) => wrong.push(format!("SEED={seed}: {e}")),
        }
    }
    report(&format!(
        "{what}: {equal} equal ({with_granted} with granted gathers, {all_collectives} collectives, {in_parts} in parts), {refused} refused, {} unjustly, {chance} of chance, {} wrong in {:.1?}",
        unjust.len(),
        wrong.len(),
        begin.elapsed()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // What the backward pass reads has a say in where values lie, so in one of 1,500 programs the forward pass needs a gather
    // that it does not need alone.
    assert!(unjust.len() <= 1 + equal / 1000, "{}", unjust.join("\n"));
    assert!(chosen() || chance * 100 <= equal, "many programs say nothing");
    assert!(chosen() || in_parts * 20 >= equal, "few batches were taken in parts");
    assert!(chosen() || equal >= refused, "most layouts were refused: the test tests little");
}
