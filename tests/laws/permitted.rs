//! `ring key` is never a gather: a program has a Plan in which no device holds all keys, or error E0317 says where it would.

use crate::mutants::loaded;
use meshwright_core::training_step;
use meshwright_plan::{Collective, Operand, Plan, Prim, Step};

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
        name: "a bias of keys is computed",
        score: "sum[d](q * k) + stop_gradient(sum[d](k * k))",
        rings: Some(false),
        ..PLAIN
    },
    Variant { name: "keys are summed too", after: "+ mean[batch, key, heads, d](k)", rings: None, ..PLAIN },
    Variant {
        name: "keys are read whole too",
        after: "+ mean[batch, heads, d](sum[key](softmax[key](k) * v))",
        rings: Some(false),
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
];

/// Steps that give a device what all positions have, more than a number for each: attentions, and gathers of what they read.
fn whole(plan: &Plan) -> Vec<String> {
    let key = plan.dims.find("key").unwrap();
    let has_all = |o: &Operand| {
        let along = o.dims.iter().position(|d| *d == key);
        along.is_some_and(|k| plan.buffer(o.buf).extents[k].axes.is_empty()) && o.dims.len() > 2
    };
    let gathers = |s: &Step| {
        let all = |(k, o): (usize, &Operand)| s.origin[k].path != "table" && has_all(o);
        matches!(s.collective(), Some(Collective::AllGather { .. })) && s.writes.iter().enumerate().any(all)
    };
    let attends = |s: &Step| matches!(s.prim, Prim::Attention { .. }) && s.all().any(has_all);
    plan.steps.iter().filter(|s| gathers(s) || attends(s)).map(|s| format!("{s:?}")).collect()
}

#[test]
fn a_ring_is_a_ring_or_an_error() {
    let mut wrong = Vec::new();
    for v in VARIANTS {
        for (mesh, layout) in LAYOUTS {
            // A dim whose rule yields may be gathered by what is no attention.
            if layout.contains("key -> a when free") && v.rings == Some(false) {
                continue;
            }
            let (project, sources) = loaded(&text(v), mesh, &format!("{layout}; ring key"));
            let (done, found) = project.compile(&training_step(&project.program).unwrap(), &sources);
            let errors: Vec<&str> = found.iter().filter(|d| d.is_error()).map(|d| d.code.id).collect();
            let at = format!("{} under `{layout}` on {mesh}", v.name);
            match done {
                Some(done) => {
                    let whole = whole(&done.plan);
                    // What a layout stores whole no device lacks.
                    let stored = v.params.contains("table[key") && !layout.contains("key -> a");
                    if !whole.is_empty() && !stored {
                        wrong.push(format!("{at}: {} steps have all keys: {}", whole.len(), whole[0]));
                    }
                    if v.rings == Some(false) {
                        wrong.push(format!("{at}: has a plan"));
                    }
                }
                None if v.rings == Some(true) || errors.iter().any(|c| *c != "E0317") => {
                    let said = found.iter().map(|d| format!("{} ({})", d.message, d.notes.join("; ")));
                    wrong.push(format!("{at}: {}", said.collect::<Vec<_>>().join(" + ")));
                }
                None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
