//! Where a step comes from: a layer that is called many times has its collectives at each of its calls, in the table, the JSON,
//! the Plan, the trace and the errors, joined by number and called by path.

use crate::support::{options, run};
use meshwright_core::training_step;
use meshwright_plan::{Prim, Provenance};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Project, ProjectOptions};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// A transformer of some blocks, each a call of one layer, and a layer without parameters that is called twice in each.
fn model(blocks: usize) -> String {
    let mut text = "\
dim batch = 2, seq = 6, d = 4, heads = 2, dh = 2, ff = 6
dim key = seq

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    param b[out]     = 0
    return sum[in](x * w) + b
}

layer centered(x) {
    let c = x - mean[d](x)
    return c * rsqrt(mean[d](c * c) + 1e-5)
}

layer attention(x) {
    let q = dense(x, [d], [heads, dh])
    let k = dense(x, [d], [heads, dh])[seq -> key]
    let v = dense(x, [d], [heads, dh])[seq -> key]
    let weight = softmax[key](sum[dh](q * k))
    return dense(sum[key](weight * v), [heads, dh], [d]) as out
}

layer block(x) {
    let a = x + (attention(centered(x)) as attention)
    let up = relu(dense(centered(a), [d], [ff]))
    return a + dense(up, [ff], [d]) as down
}

model deep {
    input given[batch, seq, d]: float
    param start[d] = 0
    let x0 = given + start
"
    .to_string();
    for k in 1..=blocks {
        let _ = writeln!(
            text,
            "    let b{k} = block({})",
            if k == 1 { "x0".into() } else { format!("b{}", k - 1) }
        );
    }
    let _ = writeln!(text, "    loss l = mean[batch, seq, d](b{blocks} * b{blocks})\n}}");
    text + "train deep {\n    minimize l\n    optimizer sgd(lr = 0.01)\n}\n"
}

/// Tensor and sequence parallel: each block gathers twice and reduce-scatters twice, forward as backward.
const LAYOUT: &str = "heads, ff -> model; seq -> model when free";

fn written(dir: &Path, blocks: usize) -> String {
    let path = dir.join("deep.mw");
    std::fs::write(&path, model(blocks)).unwrap();
    path.display().to_string()
}

fn explained(model: &str, more: &[&str]) -> String {
    let said = run(&[&["explain", model, "--layout", LAYOUT, "--mesh", "model=2"], more].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    said.out
}

/// The reduce-scatters and all-gathers that every block must have: part of the step, kind, path within the block.
const OF_A_BLOCK: [(&str, &str, &str); 4] = [
    ("forward", "reduce_scatter", "attention.out"),
    ("forward", "reduce_scatter", "down"),
    ("backward", "reduce_scatter", "d(centered)"),
    ("backward", "reduce_scatter", "d(centered#2)"),
];

/// `d(b3.up)` of block 3 and `d(up)`.
fn in_block(k: usize, path: &str) -> String {
    match path.strip_prefix("d(") {
        Some(rest) => format!("d(b{k}.{rest}"),
        None => format!("b{k}.{path}"),
    }
}

#[test]
fn every_block_has_its_own_collectives_in_the_table_and_the_json() {
    let dir = tempfile::tempdir().unwrap();
    for blocks in [2, 12] {
        let file = written(dir.path(), blocks);
        let report: Value = serde_json::from_str(explained(&file, &["--format", "json"]).trim()).unwrap();
        let values = report["values"].as_array().unwrap();
        let path_of: SortedMap<u64, &str> =
            values.iter().map(|v| (v["id"].as_u64().unwrap(), v["value"].as_str().unwrap())).collect();
        let mut at_row: SortedMap<(String, String, String), usize> = SortedMap::new();
        for c in report["collectives"].as_array().unwrap() {
            for part in c["parts"].as_array().unwrap() {
                let row = path_of[&part["id"].as_u64().unwrap()];
                assert_eq!(row, part["value"], "a collective on the row of another value: {part}");
                let key = |k: &str| c[k].as_str().unwrap().to_string();
                *at_row.entry((key("phase"), key("op"), row.into())).or_default() += 1;
            }
        }
        for k in 1..=blocks {
            for (phase, op, path) in OF_A_BLOCK {
                let key = (phase.to_string(), op.to_string(), in_block(k, path));
                assert_eq!(at_row.get(&key), Some(&1), "{key:?} of {at_row:#?}");
            }
        }
        let table = explained(&file, &[]);
        assert_eq!(table.contains(", each"), blocks > 4, "{table}");
        let detailed = explained(&file, &["--all"]);
        for k in 1..=blocks {
            for (phase, op, path) in OF_A_BLOCK {
                let path = in_block(k, path);
                let own = |table: &str| -> Vec<String> {
                    let named = |l: &&str| l.split_whitespace().nth(1) == Some(&*path);
                    section(table, phase).filter(named).map(String::from).collect()
                };
                // In the overview it is shown, or it is one of the blocks of which another is.
                assert!(own(&table).len() == 1 || is_folded(&table, phase, k), "{path}\n{table}");
                let rows = own(&detailed);
                let [row] = &rows[..] else { panic!("rows of {path}: {rows:?}\n{detailed}") };
                assert_eq!(row.matches(&op.replace('_', "-")).count(), 1, "{row}");
                assert!(row.contains("[batch seq d]"), "a row without dims: {row}");
            }
        }
        assert!(!table.contains("(unnamed)"), "{table}");
    }
}

/// Whether block `k` is one of those that a line such as `b1 … b12, each` speaks of.
fn is_folded(table: &str, phase: &str, k: usize) -> bool {
    let number = |b: &str| b.trim().trim_start_matches('b').parse::<usize>().unwrap();
    section(table, phase).filter_map(|l| l.strip_suffix(", each")).any(|blocks| {
        blocks.split(", ").any(|range| {
            let (a, b) = range.split_once(" … ").unwrap();
            (number(a).min(number(b))..=number(a).max(number(b))).contains(&k)
        })
    })
}

/// The rows of a part of the step.
fn section<'a>(table: &'a str, phase: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let title = format!("  {phase}");
    let rows = table.lines().skip_while(move |l| *l != title).skip(1);
    rows.take_while(|l| l.starts_with("   ")).collect::<Vec<_>>().into_iter()
}

#[test]
fn plan_and_trace_call_every_step_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), 2);
    let plan = explained(&file, &["--emit", "plan"]);
    let trace = dir.path().join("trace.json").display().to_string();
    let args =
        ["bench", "model", &file, "--layout", LAYOUT, "--mesh", "model=2", "--steps", "1", "--warmup", "0"];
    let said = run(&[&args[..], &["--trace", &trace]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let starts: Vec<&Value> = events["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|e| e["pid"] == 0 && e["name"].as_str().unwrap().starts_with("start reduce_scatter"))
        .collect();
    let mut ids = SortedSet::new();
    for k in 1..=2 {
        for (_, op, path) in OF_A_BLOCK {
            let path = in_block(k, path);
            let steps =
                plan.lines().filter(|l| l.contains(op) && l.ends_with(&format!("  // {path}"))).count();
            assert_eq!(steps, 1, "{op} of {path} in\n{plan}");
            let mut traced = starts.iter().filter(|e| e["args"]["value"] == path.as_str());
            let event = traced.next().unwrap_or_else(|| panic!("no {op} of {path}: {starts:#?}"));
            assert!(traced.next().is_none(), "{path} twice");
            assert!(ids.insert(event["args"]["id"].as_u64().unwrap()), "one id for two values: {event}");
        }
    }
    assert_eq!(starts.len(), ids.len());
}

#[test]
fn a_question_is_answered_by_path_and_by_a_short_name_that_leaves_no_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), 2);
    let first = |question: &str| {
        explained(&file, &["--why", question]).lines().next().unwrap_or_default().to_string()
    };
    let q = first("b1.attention.q.heads");
    assert!(q.starts_with("heads of b1.attention.q[batch seq heads dh] is split over model"), "{q}");
    let out = first("b1.attention.out.d");
    assert!(out.starts_with("d of b1.attention.out[batch seq d] is replicated"), "{out}");
    assert!(first("b2.up.ff").starts_with("ff of b2.up[batch seq ff] is split over model"));
    assert!(first("d(b2.up).ff").starts_with("ff of d(b2.up)["), "{}", first("d(b2.up).ff"));
    // The path of a layer call whose result another call made; and a value that is called so alone.
    assert!(first("b1.attention.d").starts_with("d of b1.attention.out["), "{}", first("b1.attention.d"));
    // Without a dim: of each.
    let all = explained(&file, &["--why", "b1.up"]);
    for dim in ["batch", "seq", "ff"] {
        assert!(all.contains(&format!("{dim} of b1.up[batch seq ff] is ")), "{all}");
    }
    let said = run(&["explain", &file, "--layout", LAYOUT, "--mesh", "model=2", "--why", "up.ff"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error[E0523]") && said.err.contains("`b1.up.ff`, `b2.up.ff`"), "{}", said.err);
    let one = written(dir.path(), 1);
    assert!(explained(&one, &["--why", "up.ff"]).starts_with("ff of b1.up["));
}

#[test]
fn a_layer_without_parameters_has_a_path_for_each_call() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), 1);
    let table = explained(&file, &["--all"]);
    for path in ["b1.centered.c", "b1.centered#2.c"] {
        let rows = section(&table, "forward").filter(|l| l.split_whitespace().nth(1) == Some(path)).count();
        assert_eq!(rows, 1, "{path} in\n{table}");
    }
}

/// What stages send and receive, and what else communicates, is of a value with a line, in every model that ships and that a
/// pipeline takes.
#[test]
fn what_communicates_has_a_value_and_a_line() {
    let mut messages = 0;
    for model in ["bert", "bert_classify", "gpt", "llama", "switch", "vit"] {
        for layout in ["pipeline", "3d"] {
            let of = ProjectOptions { preset: Some("tiny".into()), ..options(model, "", layout, &[]) };
            let loaded = Project::load(&of);
            let project = loaded.project.unwrap_or_else(|| panic!("{model}: {:?}", loaded.diagnostics));
            let step = training_step(&project.program).unwrap();
            let plan = project.compile(&step, &loaded.sources).0.unwrap().plan;
            for step in plan.steps.iter().filter(|s| s.communicates()) {
                let link = matches!(step.prim, Prim::Send { .. } | Prim::Receive { .. });
                messages += usize::from(link);
                let known = |cause: &Provenance| !cause.path.is_empty() && cause.line > 0;
                assert!(
                    step.origin.iter().all(known),
                    "{model}, {layout}: {}: {:?}",
                    step.name(),
                    step.origin
                );
                let least = usize::from(link || step.collective().is_some());
                assert!(
                    step.origin.len() >= step.writes.len().max(least),
                    "{model}, {layout}: {}",
                    step.name()
                );
            }
        }
    }
    assert!(messages >= 6 * 2 * 4, "{messages}");
}
