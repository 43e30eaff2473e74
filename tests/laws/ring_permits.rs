//! `ring key` is never a gather: a program has a Plan in which no device holds all keys, or error E0317 says where it would.

use crate::mutants::loaded;
use meshwright_core::{StepGraph, evaluation, training_step};
use meshwright_diag::Sources;
use meshwright_plan::{Collective, Operand, Plan, Prim, Step};
use meshwright_train::Project;

/// How a model makes keys and values, and what it does besides.
struct Variant {
    name: &'static str,
    /// Parameters, scores of queries `q` and keys `k`, values, and terms of the loss beside that of attention.
    params: &'static str,
    score: &'static str,
    values: &'static str,
    after: &'static str,
    /// Whether it has a Plan where positions are split; none where that depends on the layout.
    rings: Option<bool>,
}

const PLAIN: Variant =
    Variant { name: "plain", params: "", score: "sum[d](q * k)", values: "v", after: "", rings: Some(true) };

const VARIANTS: &[Variant] = &[
    PLAIN,
    Variant { name: "keys are values", values: "k", ..PLAIN },
    Variant {
        name: "one value is queries, keys and values",
        score: "sum[d](tanh(x * wk) * k)",
        values: "k",
        ..PLAIN
    },
    Variant {
        name: "values are learned",
        params: "param table[key, heads, d] = normal(0, 1)",
        values: "table",
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "keys and values are learned",
        params: "param table[key, heads, d] = normal(0, 1)",
        score: "sum[d](q * table)",
        values: "tanh(table)",
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "keys are learned, and values",
        params: "param table[key, heads, d] = normal(0, 1)\n    param values[key, heads, d] = normal(0, 1)",
        score: "sum[d](q * table)",
        values: "values",
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "a bias of keys is computed",
        score: "sum[d](q * k) + stop_gradient(sum[d](k * k))",
        rings: Some(false),
        ..PLAIN
    },
    Variant { name: "keys are summed too", after: "+ mean[batch, key, heads, d](k)", rings: None, ..PLAIN },
    Variant {
        name: "keys are read whole too",
        after: "+ mean[batch, heads, d](sum[key](softmax[key](k) * v))",
        // Where keys stay split outside of attention, nothing reads all of them.
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "keys are values, of two attentions",
        values: "k",
        after: "+ mean[batch, seq, heads, d](sum[key](softmax[key](sum[d](q * 2 * k)) * k))",
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "two attentions share keys",
        after: "+ mean[batch, seq, heads, d](sum[key](softmax[key](sum[d](q * 2 * k)) * v))",
        rings: None,
        ..PLAIN
    },
    Variant {
        name: "scores are read too",
        after: "+ mean[batch, seq, heads, key](tanh(sum[d](q * k)))",
        rings: Some(false),
        ..PLAIN
    },
    Variant {
        name: "a bias of pairs is learned",
        params: "param bias[seq, key] = normal(0, 1)",
        score: "sum[d](q * k) + bias",
        rings: Some(false),
        ..PLAIN
    },
];

fn text(v: &Variant) -> String {
    let Variant { params, score, values, after, .. } = v;
    format!(
        "dim batch = 4, seq = 8, heads = 2, d = 3, key = seq
model m {{
    input x[batch, seq, d]: float
    param wq[heads, d] = normal(0, 1)
    param wk[heads, d] = normal(0, 1)
    param wv[heads, d] = normal(0, 1)
    {params}
    let q = x * wq
    let k = tanh(x * wk)[seq -> key]
    let v = (x * wv)[seq -> key]
    let score = {score}
    let seen = where(index(key) <= index(seq), score, -1e9)
    let y = sum[key](softmax[key](seen) * {values})
    loss l = mean[batch, seq, heads, d](y * y) {after}
}}
train m {{ minimize l optimizer sgd(lr = 0.1) }}
"
    )
}

/// The same in a loop over layers.
fn layers(v: &Variant) -> String {
    let text =
        text(v).replace(", key = seq", ", key = seq, layers = 3").replace("{ minimize l", "{\n minimize l");
    let (head, body) = text.split_once("    param wq").unwrap();
    let (body, end) = body.split_once("    loss").unwrap();
    let body = body.replace("x * w", "h * w").replace("x * wk", "h * wk");
    let body = format!(
        "    let h = x\n    repeat layers {{\n    param wq{body}    h = h + mean[heads](y)\n    }}\n"
    );
    format!(
        "{head}{body}    loss{}",
        end.replace("mean[batch, seq, heads, d](y * y)", "mean[batch, seq, d](h * h)")
    )
}

const LAYOUTS: &[(&str, &str)] = &[
    ("a=2", "seq -> a"),
    ("a=3", "seq -> a"),
    ("a=2", "seq -> a; key -> a when free"),
    ("a=2", "seq -> a; key -> a when free; order seq zigzag a"),
    ("a=2,b=2", "seq -> a, b"),
    ("a=2,b=2", "seq -> b, a"),
    ("a=2,b=2", "seq -> a; heads -> b"),
    ("a=2,b=2", "batch -> b; seq -> a; params: * -> b"),
    ("a=2", "seq -> a; params: * -> a"),
    ("a=2", "seq -> a; order seq zigzag a"),
    ("a=2,b=2", "seq -> a, b; order seq zigzag a, b"),
    ("a=2,b=2", "seq -> a; seq -> b when free; heads -> b"),
    ("a=2,b=2", "seq -> a; key -> a when free; params: * -> b"),
    ("b=2,a=2", "seq -> a; key -> a when free; params: * -> b"),
    ("a=2,b=2", "seq -> a; key -> a when free; params: heads -> b"),
    ("a=2,b=2", "seq -> a; key -> a when free; heads -> b when free; params: * -> b"),
    ("a=2,b=3", "seq -> a; key -> a when free; params: d -> b; order seq zigzag a"),
];

/// Steps that give a device what all positions have, more than a number for each: attentions, and gathers of what they read.
fn whole(plan: &Plan) -> Vec<String> {
    let key = plan.dims.find("key").unwrap();
    let has_all = |o: &Operand| {
        let along = o.dims.iter().position(|d| *d == key);
        along.is_some_and(|k| plan.buffer(o.buf).extents[k].axes.is_empty()) && o.dims.len() > 2
    };
    let gathers = |s: &Step| {
        let all = |(k, o): (usize, &Operand)| *s.origin[k].path != *"table" && has_all(o);
        matches!(s.collective(), Some(Collective::AllGather { .. })) && s.writes.iter().enumerate().any(all)
    };
    let attends = |s: &Step| matches!(s.prim, Prim::Attention { .. }) && s.all().any(has_all);
    plan.steps.iter().filter(|s| gathers(s) || attends(s)).map(|s| format!("{s:?}")).collect()
}

/// What a step of a model under a layout does wrong: it has a Plan without a device that has all keys, or the error, as its
/// variant has to.
fn wrong(
    v: &Variant,
    step: &StepGraph,
    (project, sources): &(Project, Sources),
    layout: &str,
) -> Option<String> {
    let (done, found) = project.compile(step, sources);
    match done {
        Some(done) => {
            let whole = whole(&done.plan);
            // What a layout stores whole no device lacks.
            let stored = v.params.contains("table[key") && !layout.contains("key -> a");
            if !whole.is_empty() && !stored {
                return Some(format!("{} steps have all keys: {}", whole.len(), whole[0]));
            }
            // What is in the way of some is a gradient.
            (v.rings == Some(false) && step.program == "train").then(|| "has a plan".to_string())
        }
        None if v.rings == Some(true) || !found.iter().any(|d| ["E0310", "E0317"].contains(&d.code.id)) => {
            let said = found.iter().map(|d| format!("{} ({})", d.message, d.notes.join("; ")));
            Some(said.collect::<Vec<_>>().join(" + "))
        }
        None => None,
    }
}

fn check(variants: &[&Variant], text: fn(&Variant) -> String, more: &[&str]) {
    let mut all = Vec::new();
    for v in variants {
        for ((mesh, layout), more) in LAYOUTS.iter().flat_map(|l| more.iter().map(move |m| (l, m))) {
            let loaded = loaded(&text(v), mesh, &format!("{layout}{more}; ring key"));
            let training = training_step(&loaded.0.program).unwrap();
            let (evaluation, _) = evaluation(&loaded.0.program);
            for step in [training, evaluation.unwrap().step] {
                let found = wrong(v, &step, &loaded, layout);
                all.extend(found.map(|w| {
                    format!("{} of {} under `{layout}{more}` on {mesh}: {w}", step.program, v.name)
                }));
            }
        }
    }
    assert!(all.is_empty(), "{} of them:\n{}", all.len(), all.join("\n"));
}

#[test]
fn a_ring_is_a_ring_or_an_error() {
    check(&VARIANTS.iter().collect::<Vec<_>>(), text, &[""]);
}

#[test]
fn a_ring_is_a_ring_or_an_error_in_loops_and_in_parts() {
    let within: Vec<&Variant> = VARIANTS.iter().filter(|v| v.after.is_empty()).collect();
    check(
        &within,
        layers,
        &["", "; microbatches 2", "; recompute layers.*", "; keep params; microbatches 2"],
    );
    check(&within, text, &["; microbatches 2", "; recompute *"]);
}

/// With `gather` beside `ring` whatever is no ring gathers; without devices to go around there are none.
#[test]
fn a_gather_beside_a_ring_refuses_nothing() {
    for v in VARIANTS {
        for (mesh, layout) in LAYOUTS.iter().copied().chain([("a=1,b=2", "seq -> a; heads -> b")]) {
            let more = if mesh.contains("a=1") { "ring key" } else { "gather key, heads; ring key" };
            for text in [text(v), layers(v)] {
                if v.after.is_empty() || !text.contains("repeat") {
                    let (project, sources) = loaded(&text, mesh, &format!("{layout}; {more}"));
                    let (done, found) = project.compile(&training_step(&project.program).unwrap(), &sources);
                    assert!(done.is_some(), "{} under `{layout}; {more}` on {mesh}: {found:?}", v.name);
                }
            }
        }
    }
}
