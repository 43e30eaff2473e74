//! Loops, differentiated: the gradients of random programs whose loops collect what no iteration changes, or only some do, equal
//! central differences of the same programs with every iteration written out; in `f64` by oracles, and in every precision on
//! devices.
//!
//! 120 seeds in a normal run, of which a quarter runs on devices; 2,000 with `LONG=1`; `SEED=n` takes one,
//! `SEED=n..m` those between.

use crate::devices::{Refused, plan};
use crate::fuzz::{Random, Trace, bound_in, layouts, run, run_on};
use crate::oracle::{Bound, walk};
use crate::repeat::program;
use crate::report;
use crate::rng::{Rng, chosen, seeds};
use meshwright_core::layout::Layout;
use meshwright_core::passes::unroll::unrolled;
use meshwright_core::step::autodiff::gradients;
use meshwright_core::{OutputKind, Program, StepGraph, StepOutput, specialized, training_step};
use meshwright_ops::{F64Tensor, Graph, Id, InputOpKind, Kind};
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use std::time::Instant;

/// How far a parameter is moved along a direction, each way, and twice as far: what is off is of the fourth power of it.
const STEP: f64 = 1e-4;

/// How many seeds there are in a normal run, and in a long one.
const COUNT: (u64, u64) = (120, 2_000);

fn step_of(p: &Program, graph: Graph, outputs: Vec<(String, Id)>) -> StepGraph {
    let outputs = outputs.into_iter().map(|(name, id)| StepOutput { name, id, kind: OutputKind::Output });
    let inputs = p.inputs.iter().map(|i| i.0.clone()).collect();
    StepGraph {
        model: p.model.clone(),
        program: "gradients",
        float: p.float,
        scale_history: None,
        graph,
        inputs,
        outputs: outputs.collect(),
    }
}

/// A step that gives the loss and the gradient of each parameter, as a training step has them.
fn differentiated(r: &Random) -> StepGraph {
    let p = &specialized(&r.program, true);
    let mut graph = p.graph.clone();
    let loss = p.train.as_ref().unwrap().loss().id;
    let params: Vec<_> = p.params.iter().collect();
    let grads = gradients(&mut graph, loss, &params);
    let named = params.iter().map(|p| p.path.clone()).zip(grads);
    let outputs = [("loss".to_string(), loss)].into_iter().chain(named).collect();
    step_of(p, graph, outputs)
}

/// What the outputs of a step are by oracles, with every iteration written out.
fn meant(step: &StepGraph, r: &Random) -> SortedMap<String, F64Tensor> {
    let step = unrolled(step);
    let values = walk(&step.graph, &bound_in(&step.graph, r));
    step.outputs.iter().map(|o| (o.name.clone(), values[o.id.0 as usize].clone())).collect()
}

/// The program's loss alone, as it is written, with every iteration written out.
struct Forward {
    graph: Graph,
    loss: Id,
    bound: Bound,
}

impl Forward {
    fn of(r: &Random) -> Forward {
        let p = &r.program;
        let loss = p.train.as_ref().unwrap().loss().id;
        let step = unrolled(&step_of(p, p.graph.clone(), vec![("loss".into(), loss)]));
        let bound = bound_in(&step.graph, r);
        Forward { loss: step.outputs[0].id, bound, graph: step.graph }
    }

    /// The slope of the loss along a direction of a parameter.
    fn slope(&mut self, path: &str, along: &[f64]) -> f64 {
        let is = |id: &Id| matches!(self.graph.node(*id).op.kind(), Kind::Input(InputOpKind::Param { path: p, .. }) if p == path);
        let id = self.graph.ids().find(is).unwrap();
        let still = self.bound[&id].clone();
        let mut at = |by: f64| {
            let data = still.data.iter().zip(along).map(|(x, d)| x + by * d).collect();
            self.bound.insert(id, F64Tensor { data, ..still.clone() });
            walk(&self.graph, &self.bound)[self.loss.0 as usize].data[0]
        };
        let mut apart = |by: f64| at(by) - at(-by);
        let slope = (8.0 * apart(STEP) - apart(2.0 * STEP)) / (12.0 * STEP);
        self.bound.insert(id, still);
        slope
    }
}

/// Which gradients are not the slopes of the loss, in words.
fn wrong_slopes(seed: u64) -> Vec<String> {
    let r = &program(seed, true, DType::F64);
    let found = meant(&differentiated(r), r);
    let mut forward = Forward::of(r);
    let mut rng = Rng::new(seed);
    let mut wrong = Vec::new();
    for p in &r.program.params {
        let gradient = found[&p.path].ordered(&r.bound[&p.id].dims);
        let along: Vec<f64> = gradient.data.iter().map(|_| rng.float(-1.0, 1.0)).collect();
        let got: f64 = gradient.data.iter().zip(&along).map(|(g, d)| g * d).sum();
        let want = forward.slope(&p.path, &along);
        let off = (got - want).abs();
        if off.is_nan() || off > 1e-7 * want.abs().max(0.1) {
            wrong.push(format!("SEED={seed}: the slope along d({}) is {want:e}, not {got:e}", p.path));
        }
    }
    wrong
}

#[test]
fn gradients_of_loops_equal_differences() {
    let begin = Instant::now();
    let seeds = seeds(COUNT.0, COUNT.1);
    let wrong: Vec<String> = seeds.clone().flat_map(wrong_slopes).collect();
    report(&format!("gradients of the programs {seeds:?} with loops in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What the loss and the gradients may be off by, of the greatest number of each: what a few dozen operations round.
fn tolerance(float: DType) -> f64 {
    match float {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 0.03,
        _ => 0.2,
    }
}

/// The first output of a run that is not what is meant.
fn unequal(got: &Trace, want: &SortedMap<String, F64Tensor>, within: f64) -> Option<String> {
    // All gradients are sums of the same cotangents: what cancels in one leaves the rounding of these.
    let largest = |v: &F64Tensor| v.data.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    let all = want.values().map(largest).fold(0.0, f64::max);
    want.iter().find_map(|(name, want)| {
        let got = got[0][name].1.ordered(&want.dims);
        let off = got.data.iter().zip(&want.data).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        let fine = off <= within * all && got.data.iter().all(|x| x.is_finite());
        (!fine).then(|| format!("{name} is {off:e} off, where the greatest number is {all:e}"))
    })
}

/// Compiles the program of a seed in a precision, on one device and under a random layout: its gradients and its training.
fn wrong_in(seed: u64, float: DType, runs: bool) -> Result<(), String> {
    let mut r = program(seed, true, if float == DType::F64 { float } else { DType::F32 });
    r.program.float = float.into();
    let step = differentiated(&r);
    let text = |e: Refused| format!("{e:?}");
    let alone = plan(&step, &Layout::default(), false).map_err(text)?.plan;
    let train = training_step(&r.program).ok_or("no training step")?;
    let trained = plan(&train, &Layout::default(), false).map_err(text)?.plan;
    let layouts::Placing { layout, .. } = layouts::random(seed, &r);
    for step in [&step, &train] {
        if let Err(Refused::Bug(e)) = plan(step, &layout, true) {
            return Err(format!("under a layout: {e}"));
        }
    }
    if runs {
        let want = meant(&step, &r);
        let launched =
            unequal(&run_on(meshwright_burn::reference(), alone.clone(), &r)?, &want, tolerance(float));
        launched.map_or(Ok(()), |e| Err(format!("as a GPU launches it, {e}")))?;
        unequal(&run(alone, &r)?, &want, tolerance(float)).map_or(Ok(()), Err)?;
        let loss = SortedMap::from([("loss".to_string(), want["loss"].clone())]);
        unequal(&run(trained, &r)?, &loss, tolerance(float)).map_or(Ok(()), Err)?;
    }
    Ok(())
}

#[test]
fn loops_have_plans_and_gradients_in_every_precision() {
    let begin = Instant::now();
    let (mut wrong, mut count) = (Vec::new(), 0);
    // Seeds whose device plans for GPUs were refused: what a loop leaves was made in a stack that had another name by then.
    let found = if chosen() { &[][..] } else { &[608, 1016] };
    for (i, seed) in seeds(COUNT.0, COUNT.1).chain(found.iter().copied()).enumerate() {
        for float in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let runs = i % 4 == 0 || found.contains(&seed);
            let found = std::panic::catch_unwind(|| wrong_in(seed, float, runs));
            let found = found.unwrap_or_else(|_| Err("a panic".into()));
            wrong.extend(found.err().map(|e| format!("SEED={seed}, {float}: {e}")));
            count += 1;
        }
    }
    report(&format!("loops in every precision: {count} programs in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
