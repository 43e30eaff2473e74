//! Loops over several training steps: states in them, and products with one-hots.

use crate::support::{apart, options};
use meshwright_core::passes::unroll::unrolled;
use meshwright_core::{Program, StepGraph, examined_step, training_step};
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{Arithmetic, Phase, Plan, Prim, StepLoop};
use meshwright_sorted::SortedMap;
use meshwright_train::{Loaded, Project, ProjectOptions};
use std::sync::Arc;

fn loaded(text: &str, mesh: &str, layout: &str) -> (Project, Loaded) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.mw");
    std::fs::write(&file, text).unwrap();
    let o = options(file.to_str().unwrap(), mesh, layout, &[]);
    let mut loaded = Project::load(&ProjectOptions { precision: Some(Arithmetic::F64), ..o });
    let project = loaded.project.take().unwrap_or_else(|| panic!("{layout}: {:?}", loaded.diagnostics));
    (project, loaded)
}

/// Losses, parameters and states after three steps on numbers that are the same for all.
pub(crate) fn after_steps(
    text: &str,
    (mesh, layout): (&str, &str),
    change: impl Fn(&Program) -> StepGraph,
) -> SortedMap<String, Vec<f64>> {
    let (project, loaded) = loaded(text, mesh, layout);
    let step = change(&project.program);
    let plan = project.compile(&step, &loaded.sources).0.unwrap_or_else(|| panic!("{layout}")).plan;
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 7).unwrap();
    let dims = project.program.graph.dims.clone();
    let provider: Provider = Arc::new(move |_, leaves: &[LocalInput]| {
        let whole = |l: &LocalInput| {
            let shape = dims.shape(&l.dims);
            let value = |i: usize| ((i * 37) % 23) as f64 / 11.0 - 1.0;
            let values = (0..shape.iter().product()).map(value).collect();
            HostTensor::new(shape, HostData::from_f64(l.dtype, values)).unwrap()
        };
        Ok(leaves.iter().map(|l| whole(l).slice(&l.ranges).unwrap()).collect())
    });
    let mut out = SortedMap::new();
    for step in 1..=3 {
        let losses = cluster.run(id, step, &provider).unwrap().outputs;
        out.extend(losses.into_iter().map(|(name, v)| (format!("{name} {step}"), v.data.to_f64())));
    }
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    out.extend(names.into_iter().map(|n| (n.clone(), cluster.state(&n).unwrap().data.to_f64())));
    cluster.shutdown();
    out
}

pub(crate) fn same(what: &str, one: &SortedMap<String, Vec<f64>>, other: &SortedMap<String, Vec<f64>>) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>(), "{what}");
    for (name, values) in one {
        let far = apart(values, &other[name]);
        assert!(far < 1e-11, "{what}: `{name}` differs by {far:e}");
    }
}

fn step_of(program: &Program) -> StepGraph {
    training_step(program).unwrap()
}

const NORMS: &str = r#"
use "std:nn"
dim batch = 8, rows = 3, channels = 4, layers = 3
model m {
    input x[batch, rows, channels]: float
    state seen[channels] = 1
    let y = x
    repeat layers {
        param w[channels] = normal(1, 0.1)
        y = y + tanh(batch_norm(y * w, channels, [batch, rows]) as norm)
        state largest[] = 0
        largest = max(largest, max[batch, rows, channels](y))
        seen = 0.5 * seen + mean[batch, rows](y)
    }
    loss l = mean[batch, rows, channels](y * y) + mean[channels](seen)
}
train m { minimize l optimizer sgd(lr = 0.1) }
"#;

/// Each iteration has states of its own, one from around the loop goes through all of them: as if written out, and under each
/// layout.
#[test]
fn states_in_loops_are_those_of_each_iteration_or_carried() {
    let alone = after_steps(NORMS, ("", ""), step_of);
    assert_eq!(alone["layers.norm.average"].len(), 12);
    let moved = |n: &str| alone[n].windows(2).any(|w| w[0] != w[1]);
    assert!(moved("layers.norm.variance") && moved("layers.largest") && moved("seen"), "{alone:?}");
    same("written out", &alone, &after_steps(NORMS, ("", ""), |p| unrolled(&step_of(p))));
    for layout in ["batch -> a", "channels -> a", "batch -> a; params: channels -> a"] {
        same(layout, &alone, &after_steps(NORMS, ("a=2", layout), step_of));
    }
}

/// What a loop collects or carries on, though no iteration changes it: `GRADIENT * w / 3` is the gradient of `w`.
const UNCHANGED: &[(&str, f64)] = &[
    (
        "let a = max[seq](x)  scan seq { a = a + x  let v = w * 2 }  loss l = mean[seq, h](v * v) + 0 * mean[batch](a)",
        8.0,
    ),
    ("scan seq { let v = w * 2 }  loss l = mean[seq, h](v * v)", 8.0),
    ("let v = w  repeat seq { v = w * 2 }  loss l = mean[h](v * v)", 8.0),
    ("let a = w  let b = w  repeat seq { a = b  b = w * 2 }  loss l = mean[h](a * b)", 8.0),
    (
        "scan seq { let s = w * 2  scan time { let u = s * 3 }  let v = sum[time](u) }  loss l = mean[seq, h](v * v)",
        2.0 * 144.0,
    ),
    (
        "let t = w * 0  repeat seq { t = t + w * 2 }  let n = 0.0  repeat seq { n = n + mean[h](w * w) }  loss l = n + mean[h](t * t)",
        10.0 + 2.0 * 100.0,
    ),
];

#[test]
fn what_no_iteration_changes_has_its_gradient() {
    for (body, gradient) in UNCHANGED {
        let text = format!(
            "dim seq = 5, time = 2, batch = 2, h = 3\nmodel m {{\n    input x[batch, seq]: float\n    param w[h] = 0.7\n    {body}\n}}\n\
             train m {{ minimize l optimizer sgd(lr = 0.001) }}\n"
        );
        let after = after_steps(&text, ("", ""), step_of);
        let want = 0.7 * (1.0 - 0.001 * gradient / 3.0).powi(3);
        let fine = after["w"].iter().all(|w| (w - want).abs() < 1e-12);
        assert!(fine, "{body}: {:?}, not {want}", after["w"]);
    }
}

/// A call in a loop that shares one in front of it is as the same calls written out, under each layout.
#[test]
fn a_loop_shares_a_call_in_front_of_it() {
    let text = |body: &str| {
        format!(
            "dim batch = 6, d = 4, k = 3
            layer step(x) {{ param w[d] = normal(1, 0.1) param b[d] = 0 return tanh(x * w + b) }}
            model m {{ input x[batch, d]: float {body} loss l = mean[batch, d](y * y) }}
            train m {{ minimize l optimizer adam(lr = 0.1) }}"
        )
    };
    let calls = "y1 = step(y0) sharing one let y2 = step(y1) sharing one let y = step(y2) sharing one";
    let written = text(&format!("let y0 = step(x) as one let {calls}"));
    let looped = text("let y = step(x) as one repeat k { y = step(y) sharing one }");
    let alone = after_steps(&written, ("", ""), step_of);
    for layout in ["", "batch -> a", "d -> a", "batch -> a; params: d -> a"] {
        same(layout, &alone, &after_steps(&looped, ("a=2", layout), step_of));
    }
}

const LSTM: &str = r#"
use "std:nn"
dim batch = 3, seq = 64, d = 4, hidden = 5, before = hidden, units = hidden
model m {
    input x[batch, seq, d]: float
    let low  = lstm(x, seq, d, hidden, before) as low
    let high = lstm(low[hidden -> units], seq, units, hidden, before) as high
    loss l = mean[batch, seq, hidden](high * high)
}
train m { minimize l optimizer adam(lr = 0.1) }
"#;

/// A scan is compiled once: longer sequences take no more steps of the Plan. Of two layers there are two loops forward and two
/// backward, and each of the products of a cell is there once.
#[test]
fn longer_sequences_are_no_more_steps() {
    let cell = "use \"std:nn\"\ndim batch = 3, seq = 64, d = 4, hidden = 5, before = hidden\nmodel m {
    input x[batch, seq, d]: float\n    let h = gru(x, seq, d, hidden, before)\n    loss l = mean[batch, seq, hidden](h * h)\n}
train m { minimize l optimizer sgd(lr = 0.1) }\n";
    let plan = |text: &str, seq: usize, layout| {
        let text = text.replace("seq = 64", &format!("seq = {seq}"));
        let (project, files) = loaded(&text, "a=2", layout);
        project.compile(&step_of(&project.program), &files.sources).0.unwrap().plan
    };
    let split = ["hidden -> a; gather before", "hidden -> a; gather before, units"];
    for (text, split) in [(cell, split[0]), (LSTM, split[1])] {
        for layout in ["", "batch -> a", split] {
            let [few, many] = [64, 2_000].map(|seq| plan(text, seq, layout));
            let names = |p: &Plan| p.steps.iter().map(|s| s.name()).collect::<Vec<_>>();
            assert_eq!(names(&few), names(&many), "{layout}");
            assert!(few.steps.len() < 400, "{layout}: {}", few.steps.len());
        }
    }
    let plan = plan(LSTM, 64, "");
    let loops: Vec<(usize, bool)> = plan.loops().iter().map(|l| (plan.dims.size(l.dim), l.reverse)).collect();
    assert_eq!(loops, [(64, false), (64, false), (64, true), (64, true)]);
    let products = |l: &StepLoop| {
        let steps = plan.steps.iter().enumerate().filter(|(i, _)| l.contains(*i));
        steps.filter(|(_, s)| s.phase == Phase::Forward && matches!(s.prim, Prim::Contract)).count()
    };
    // Of the input and of the old `h`, for each of three gates and the new cell.
    assert_eq!(plan.loops()[..2].iter().map(products).collect::<Vec<_>>(), [8, 8]);
}

const EXPERTS: &str = r"
dim batch = 4, seq = 6, choice = 3, experts = choice, slots = 2, rank = 2, d = 4
model m {
    input token[batch, seq, d]: float
    param scale[d] = normal(1, 0.3)
    let x = token * scale
    param router[d, choice] = normal(0, 1)
    param up[experts, d] = normal(1, 0.3)
    let gate = softmax[choice](sum[d](x * router))
    let best = top_k[choice -> rank](gate)
    let hit = one_hot[choice](best)
    let before = cumsum[seq](sum[rank](hit), exclusive = true)
    let position = cast(sum[choice](hit * before), i32)
    let slot = cast(position == index(slots), float)
    let sent = sum[seq, rank](hit * slot * x)[choice -> experts]
    let y = tanh(sent * up)[experts -> choice]
    let back = sum[choice, slots, rank](hit * slot * gate * y)
    loss l = mean[batch, seq, d]((back - x) * (back - x))
}
train m { minimize l optimizer sgd(lr = 0.5) }
";

/// A sum of a product with one-hots looks up and adds up: no step has tokens, experts and slots, and numbers are those of the
/// products.
#[test]
fn products_with_one_hots_are_indexing() {
    let (project, files) = loaded(EXPERTS, "", "");
    let plan = project.compile(&step_of(&project.program), &files.sources).0.unwrap().plan;
    let largest = plan.buffers.iter().map(|b| b.extents.iter().map(|e| e.size).product::<usize>()).max();
    let tokens = 4 * 6 * 2;
    assert!(largest.unwrap() < tokens * 3 * 2, "{largest:?}");
    let count = |f: fn(&Prim) -> bool| plan.steps.iter().filter(|s| f(&s.prim)).count();
    // Forward: to the experts and back. Backward: of each the other.
    assert!(count(|p| matches!(p, Prim::ScatterAdd { dims } if dims.len() == 2)) == 2, "adding up");
    assert!(count(|p| matches!(p, Prim::Lookup { dims } if dims.len() == 2)) == 2, "looking up");
    let as_products = |p: &Program| examined_step(p).unwrap();
    let alone = after_steps(EXPERTS, ("", ""), step_of);
    same("as written", &after_steps(EXPERTS, ("", ""), as_products), &alone);
    for layout in [
        "batch -> a",
        "experts -> a; batch -> a when free",
        "choice -> a",
        "slots -> a",
        "seq -> a; choice -> a when free",
        "d -> a",
    ] {
        same(layout, &alone, &after_steps(EXPERTS, ("a=2", layout), step_of));
    }
}
