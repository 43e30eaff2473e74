//! Faults in loops: in what crosses their boundary, in what is computed again for the backward pass, in the parts of a batch, and
//! in what decoding keeps.
//!
//! They are seeded in the graph behind the last pass before partitioning, or in the Plan. Another result must tell; where the
//! result is the same, other collectives.

use super::plans::{Fault, P, R, faults, seeded, steps};
use super::run::{Conduct, run};
use super::sites::Site;
use super::subjects::{Planned, loaded, planned_from};
use super::{By, Found, Row, in_plan, in_spmd, judge};
use meshwright_core::compile::Stage;
use meshwright_core::partition::partition;
use meshwright_core::{
    DecodedOutput, Layout, NewPositions, OutputKind, PASSES, StepGraph, decode, training_step,
};
use meshwright_ops::{Crossing, DynamicUpdateSlice, Graph, Id, Random, Reverse};
use meshwright_plan::{BufId, IdVec, Operand, Plan, Prim, Step};
use meshwright_sorted::SortedSet;
use std::sync::Arc;

const LOOPS: &str = "
dim batch = 6, layers = 3, d = 4, e = 5
model m {
    input x[batch, d]: float
    param first[d] = normal(0, 1)
    param u[e] = normal(0, 1)
    let y = x * first
    let total = 0
    repeat layers {
        param w[d, e] = normal(0, 0.7)
        param v[e, d] = normal(0, 0.7)
        let h = dropout(tanh(sum[d](y * w) + u), 0.25)
        y = y + tanh(sum[e](h * v))
        total = total + mean[d](y * y)
    }
    loss l = mean[batch, d](y * y) + mean[batch](total)
}
train m { minimize l optimizer sgd(lr = 0.1, momentum = 0.9) }
";

const DECODED: &str = "
dim batch = 4, seq = 5, key = seq, vocab = 7, d = 4, layers = 2
model m {
    input token[batch, seq]: i32 in vocab
    param word[vocab, d] = normal(0, 1)
    let x = word[vocab = token]
    repeat layers {
        param w[d] = normal(0, 1)
        let s = where(index(key) <= index(seq), sum[d](x * w * x[seq -> key]), -1e9)
        x = x + sum[key](softmax[key](s) * x[seq -> key])
    }
    let logits = sum[d](x * word)
    output next = argmax[vocab](logits)
}
";

/// A program with the graph that was partitioned.
struct LoopSubject {
    planned: Planned,
    step: StepGraph,
    layout: Layout,
}

/// Name, mesh and layout.
const SUBJECTS: &[(&str, &str, &str)] = &[
    ("loops", "a=2,b=2", "batch -> a; e -> b"),
    ("three", "a=3", "batch -> a"),
    ("recomputed", "a=2", "batch -> a; recompute layers.*"),
];

fn subjects() -> Vec<LoopSubject> {
    let one = |(name, mesh, layout): &(&'static str, &str, &str)| {
        let (project, sources) = loaded(LOOPS, mesh, layout);
        let last = PASSES.iter().position(|p| p.name == "recompute").unwrap();
        let mut graph = None;
        let step = training_step(&project.program).unwrap();
        project.compile_observed(&step, &sources, &mut |pass, stage| {
            if let (true, Stage::Graph(g)) = (pass == last, stage) {
                graph = Some(g.clone());
            }
        });
        LoopSubject {
            planned: planned_from(name, LOOPS, mesh, layout),
            step: graph.unwrap(),
            layout: project.layout.clone(),
        }
    };
    SUBJECTS.iter().map(one).collect()
}

/// The same step with one more value behind each that `more` wants one for, which whoever read that reads in its place.
fn with_more(step: &StepGraph, more: impl Fn(&mut Graph, Id, Id) -> Option<Id>) -> StepGraph {
    let old = &step.graph;
    let mut g = Graph { nodes: IdVec::new(), ..old.clone() };
    let mut at = old.nodes.table(Id(0));
    for id in old.ids() {
        let mut node = old.node(id).clone();
        node.inputs.iter_mut().for_each(|x| *x = at[*x]);
        (g.cursor, g.scope) = (node.origin.clone(), node.scope);
        let made = g.push(node);
        at[id] = more(&mut g, id, made).unwrap_or(made);
    }
    for of in g.repeats.ids() {
        for (carry, next) in &mut g.repeats[of].carries {
            (*carry, *next) = (at[*carry], at[*next]);
        }
    }
    let mut out = StepGraph { graph: g, ..step.clone() };
    for goal in &mut out.outputs {
        goal.id = at[goal.id];
        if let OutputKind::Next(leaf) = &mut goal.kind {
            *leaf = at[*leaf];
        }
    }
    out
}

/// The `k`-th value, and how it crosses the boundary of a loop.
fn crossing(step: &StepGraph, k: usize) -> Option<(Id, Crossing)> {
    let id = Id(k as u32);
    Some((id, step.graph.boundary(id)?.how))
}

/// A fault in a graph: what, who must catch it, and the graph with it at the `k`-th value; `None` where it does not apply.
struct GraphFault {
    what: &'static str,
    by: &'static [By],
    seed: fn(&StepGraph, usize) -> Option<StepGraph>,
}

const GRAPH_FAULTS: &[GraphFault] = &[
    GraphFault { what: "a stack is ordered by time", by: R, seed: by_time },
    GraphFault { what: "an accumulator is reduced in each iteration", by: &[By::Bytes], seed: reduced_early },
    GraphFault { what: "a carry keeps its initial value", by: R, seed: kept },
    GraphFault { what: "a loop runs in the other direction", by: R, seed: turned },
    GraphFault { what: "a loop leaves out its first position", by: R, seed: shortened },
    GraphFault { what: "a clone draws from another stream", by: R, seed: another_stream },
];

/// What a loop that runs backward stacks has its last position first.
fn by_time(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let (stack, Crossing::Stack) = crossing(step, k)? else { return None };
    let b = step.graph.boundary(stack)?;
    step.graph.repeats[b.of]
        .reverse
        .then(|| with_more(step, |g, id, made| (id == stack).then(|| g.op(Reverse { dim: b.dim }, &[made]))))
}

/// What is added up is whole before it is added: an op that is not linear needs it so.
fn reduced_early(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let (sum, Crossing::Accumulate) = crossing(step, k)? else { return None };
    let each = step.graph.node(sum).inputs[0];
    let readers = step.graph.ids().filter(|id| step.graph.node(*id).inputs.contains(&each)).count();
    // What is of each example is no sum over examples: there is nothing to reduce.
    let of_each = step.graph.ty(each).has(step.inputs[0].dims[0]);
    (readers == 1 && !of_each)
        .then(|| with_more(step, |g, id, made| (id == each).then(|| g.binary("max", made, made))))
}

fn kept(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let (last, Crossing::Final) = crossing(step, k)? else { return None };
    let of = step.graph.boundary(last)?.of;
    let next = step.graph.node(last).inputs[0];
    let mut out = step.clone();
    let place = out.graph.repeats[of].carries.iter().position(|c| c.1 == next && c.0 != next)?;
    let current = out.graph.repeats[of].carries[place].0;
    out.graph.repeats[of].carries[place].1 = current;
    out.graph.nodes[last].inputs[0] = current;
    Some(out)
}

fn turned(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let mut out = step.clone();
    let of = out.graph.repeats.ids().nth(k)?;
    let repeat = &mut out.graph.repeats[of];
    repeat.reverse = !repeat.reverse;
    Some(out)
}

fn shortened(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let mut out = step.clone();
    let of = out.graph.repeats.ids().nth(k)?;
    let longer = out.graph.iterations(of) > 1;
    out.graph.repeats[of].from += 1;
    longer.then_some(out)
}

/// What is drawn a second time, for the backward pass.
fn another_stream(step: &StepGraph, k: usize) -> Option<StepGraph> {
    let id = Id(k as u32);
    let drawn = step.graph.node(id).op.as_any().downcast_ref::<Random>()?.clone();
    let before = step.graph.ids().take(k).any(|other| *step.graph.node(other).op == *step.graph.node(id).op);
    before.then(|| {
        let mut out = step.clone();
        out.graph.nodes[id].op = Arc::new(Random { stream: format!("{}x", drawn.stream), ..drawn });
        out
    })
}

#[test]
fn every_wrong_loop_is_caught() {
    let subjects = subjects();
    let mut rows = Vec::new();
    for fault in GRAPH_FAULTS {
        let mut found: Vec<Found> = Vec::new();
        for s in &subjects {
            for k in 0..s.step.graph.nodes.len() {
                let Some(step) = (fault.seed)(&s.step, k) else { continue };
                let (spmd, problems) = partition(&step, &s.layout);
                let mut spmd = spmd.unwrap_or_else(|| panic!("{}: {problems:?}", fault.what));
                spmd.decisions.clear();
                let f = in_spmd(&s.planned, &spmd);
                if f.is_none() {
                    crate::report(&format!("nobody sees: {}, in {} at {k}", fault.what, s.planned.name));
                }
                found.push(f.map(|f| (f.0, format!("{}, value {k}: {}", s.planned.name, f.1))));
            }
        }
        rows.push(Row { what: fault.what, expected: fault.by, found });
    }
    judge("loops", &rows);
}

/// Faults in the Plan of a step that takes its batch in parts.
const PART_FAULTS: &[Fault] = faults![
    "masks are those of other examples", R, |p, k| match (k, p.microbatches.take()) {
        (0, Some(_)) => Site::Seeded,
        _ => Site::End,
    };
    "each part begins the sum of all parts anew", PR, |p, k| sums(p, k, |p, begin, c| {
        let start = &p.steps[begin].reads[c];
        let held = p.buffer(start.buf).clone();
        p.buffers.push(held);
        let fresh = Operand { buf: BufId(p.buffers.len() as u32 - 1), dims: start.dims.clone() };
        p.steps[begin].reads[c] = fresh.clone();
        let origin = p.steps[begin].origin.clone();
        let blank = Step { origin, ..Step::new(Prim::Blank { zero: true }, vec![], vec![fresh]) };
        p.steps.insert(begin, blank);
    });
    "what lies at the position of a layer is dropped, and the value counts twice", R, |p, k| steps(p, k, |p, i| {
        let [all] = &p.steps[i].reads[..] else { return None };
        let (Prim::IterationSlice { .. }, all) = (&p.steps[i].prim, all.buf) else { return None };
        let update = p.steps.iter().find(|s| matches!(s.prim, Prim::IterationUpdate { .. }) && s.reads_buf(all))?;
        let add = p.steps.iter().position(|s| s.writes_buf(update.reads[1].buf))?;
        let value = p.steps[add].reads.iter().find(|o| o.buf != p.steps[i].writes[0].buf)?.clone();
        // What lies there is dropped.
        p.steps[add].reads.iter_mut().for_each(|o| *o = value.clone());
        Some(())
    });
];

/// A change of the carries at the beginning of a loop in another loop that do not start as blanks.
fn sums(p: &mut Plan, k: usize, change: fn(&mut Plan, usize, usize)) -> Site {
    let written = |p: &Plan, buf| {
        p.steps.iter().find(|s| s.writes_buf(buf)).is_none_or(|s| !matches!(s.prim, Prim::Blank { .. }))
    };
    let loops = p.loops();
    let inner = loops.iter().filter(|l| loops.iter().any(|around| around.contains(l.begin)));
    let carries = inner.flat_map(|l| (0..p.steps[l.begin].reads.len()).map(|c| (l.begin, c)));
    let grown = |(begin, c): &(usize, usize)| {
        let start = &p.steps[*begin].reads[*c];
        start.dims.first() == p.dims.find("layers").as_ref() && written(p, start.buf)
    };
    match carries.filter(grown).nth(k) {
        Some((begin, c)) => {
            change(p, begin, c);
            Site::Seeded
        }
        None => Site::End,
    }
}

#[test]
fn every_wrong_part_of_a_batch_is_caught() {
    let parts = planned_from("parts", LOOPS, "a=2", "batch -> a; microbatches 3");
    let rows = PART_FAULTS.iter().map(|fault| seeded(fault, std::slice::from_ref(&parts)));
    judge("parts of a batch", &rows.collect::<Vec<_>>());
}

const TURN_FAULTS: &[Fault] = faults![
    "a step of a loop runs in the turn before its own", P, |p, k| {
        steps(p, k, |p, i| p.steps[i].lag.checked_sub(1).map(|lag| p.steps[i].lag = lag))
    };
    "a step of a loop runs in the turn after its own", P, |p, k| {
        steps(p, k, |p, i| {
            let within = p.loops().iter().any(|l| l.contains(i)) && p.steps[i].prim != Prim::Wait;
            within.then(|| p.steps[i].lag += 1)
        })
    };
    "a loop is left with what was made for an iteration that does not exist", P, |p, k| {
        steps(p, k, |p, i| {
            // What runs ahead writes what is next for the last carries: an output in the place of one that is read.
            let end = p.loops().first().map(|l| l.end)?;
            (i == 0).then_some(())?;
            p.outputs.first_mut()?.buf = p.steps[end].writes.last()?.buf;
            Some(())
        })
    };
];

#[test]
fn every_wrong_turn_is_caught() {
    let staggered = planned_from("staggered", LOOPS, "a=2", "batch -> a; params: e -> a");
    let lags: SortedSet<u8> = staggered.plan.steps.iter().map(|s| s.lag).collect();
    assert_eq!(lags, SortedSet::from([0, 1, 2]), "gathers ahead, reductions behind");
    let rows = TURN_FAULTS.iter().map(|fault| seeded(fault, std::slice::from_ref(&staggered)));
    judge("turns", &rows.collect::<Vec<_>>());
}

/// What is kept of new positions is written one behind them.
fn written_late(step: &StepGraph) -> StepGraph {
    let updates = |g: &Graph, id: Id| g.node(id).op.as_any().is::<DynamicUpdateSlice>();
    assert!(step.graph.ids().any(|id| updates(&step.graph, id)), "where a cache is written");
    with_more(step, |g, id, made| {
        updates(&step.graph, id).then(|| {
            let node = g.node(made).clone();
            let one = g.constant(1.0, g.ty(node.inputs[2]).dtype);
            let late = g.sum_of(&[node.inputs[2], one]);
            g.add_op(node.op.clone(), &[node.inputs[0], node.inputs[1], late]).unwrap()
        })
    })
}

/// The `k`-th update of a cache, changed.
fn update(p: &mut Plan, k: usize, change: fn(&mut Step, &[Operand]) -> Option<()>) -> Site {
    let is = |s: &Step| matches!(s.prim, Prim::DynamicUpdateSlice { .. });
    let inputs: Vec<Operand> =
        p.program_inputs.iter().map(|i| Operand { buf: i.buf, dims: i.dims.clone() }).collect();
    match p.steps.iter_mut().filter(|s| is(s)).nth(k) {
        Some(step) => change(step, &inputs).map_or(Site::Skipped, |()| Site::Seeded),
        None => Site::End,
    }
}

const PR: &[By] = &[By::PlanVerifier, By::Result, By::Preparation, By::Run];

/// Faults in the steps that update caches.
const CACHE_FAULTS: &[Fault] = faults![
    "a cache is written from where another number says", R, |p, k| update(p, k, |s, inputs| {
        let start = s.reads[2].clone();
        s.reads[2] = inputs.iter().find(|o| o.dims == start.dims && o.buf != start.buf)?.clone();
        Some(())
    });
    "a cache is updated as if it were of one iteration", PR, |p, k| update(p, k, |s, _| {
        let Prim::DynamicUpdateSlice { iteration, .. } = &mut s.prim else { return None };
        iteration.take().map(|_| ())
    });
    "a cache and its new positions change places", PR, |p, k| update(p, k, |s, _| {
        let Prim::DynamicUpdateSlice { dim, from, .. } = &mut s.prim else { return None };
        std::mem::swap(dim, from);
        Some(())
    });
];

#[test]
fn every_wrong_update_of_a_cache_is_caught() {
    let compiled = |mesh: &str, layout: &str, wrong: bool| {
        let (project, sources) = loaded(DECODED, mesh, layout);
        let program = &project.program;
        let dim = |name: &str| program.graph.dims.find(name).unwrap();
        let new = NewPositions { count: 1, output: DecodedOutput::Value, kept_as: "cache" };
        let d = decode(program, &program.named_value("logits").unwrap(), dim("seq"), new).0.unwrap();
        let step = if wrong { written_late(&d.step) } else { d.step };
        project.compile(&step, &sources).0.unwrap()
    };
    let alone = run(&compiled("", "", false).plan, &Conduct::default()).unwrap().swap_remove(0);
    let (mut found, mut subjects) = (Vec::new(), Vec::new());
    for (mesh, layout) in [("a=2", "batch -> a"), ("a=2", "key -> a"), ("", "")] {
        let right = compiled(mesh, layout, false);
        let subject = Planned { name: "decoded", spmd: right.spmd, plan: right.plan, alone: alone.clone() };
        assert_eq!(in_plan(&subject, &subject.plan), None);
        found.push(in_plan(&subject, &compiled(mesh, layout, true).plan));
        subjects.push(subject);
    }
    let mut rows = vec![Row { what: "a cache is written one position late", expected: R, found }];
    rows.extend(CACHE_FAULTS.iter().map(|fault| seeded(fault, &subjects)));
    judge("decoding", &rows);
}
