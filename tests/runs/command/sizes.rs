//! A model is resolved once, whatever sizes and layouts are made of it.

use crate::support::{options, run};
use meshwright_core::{PASSES, training_step};
use meshwright_diag::Sources;
use meshwright_runs::catalog::MODELS;
use meshwright_train::{Project, ProjectOptions};
use serde_json::Value;

fn loaded(o: &ProjectOptions) -> (Project, Sources) {
    let loaded = Project::load(o);
    (loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics)), loaded.sources)
}

/// The Plans of training and evaluation, as texts.
fn plans(project: &Project, sources: &Sources) -> Vec<String> {
    let steps = training_step(&project.program).into_iter().chain(project.evaluation().0.map(|e| e.step));
    steps.map(|s| project.compile(&s, sources).0.unwrap().plan.to_json()).collect()
}

#[test]
fn another_batch_of_a_shipped_model_needs_no_text() {
    for m in MODELS {
        let (project, sources) = loaded(&options(m.name, "r=2", "batch -> r", &[]));
        for n in [1, 7, 250] {
            let other = project.with_batch(n).unwrap();
            assert_eq!(other.batch(), n);
            let (fresh, its) = loaded(&options(m.name, "r=2", "batch -> r", &[("batch", n)]));
            assert!(plans(&other, &sources) == plans(&fresh, &its), "{} of {n}", m.name);
        }
        assert_eq!(project.resolutions(), 1, "{}", m.name);
    }
}

const DIVIDED: &str = "
dim batch = 6, half = batch//2, n = 3
model m {
    input x[batch, n]: f32
    param w[n] = normal(0, 1)
    loss l = sum[batch, n](x * w) / size(batch)
}
train m {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

/// Where a size is a number in the program, the text is resolved again, and the result is that of the text.
#[test]
fn a_size_in_an_expression_is_resolved_again() {
    let mut o = options("m.mw", "r=2", "batch -> r", &[]);
    o.texts.insert("m.mw".into(), DIVIDED.into());
    let (project, sources) = loaded(&o);
    let same = project.with_batch(6).unwrap();
    assert_eq!((project.resolutions(), plans(&same, &sources)), (1, plans(&project, &sources)));
    let other = project.with_batch(4).unwrap();
    assert_eq!(project.resolutions(), 2);
    o.dims = vec![("batch".into(), 4)];
    let (fresh, its) = loaded(&o);
    assert_eq!(plans(&other, &sources), plans(&fresh, &its));
    // What the text refuses is refused, in its words.
    let found = project.with_sizes(&[("batch".into(), 1)]).unwrap_err();
    assert_eq!(found[0].code.id, "E0204", "{found:?}");
}

#[test]
fn fifty_layouts_cost_one_resolution_and_fifty_partitionings() {
    let base = options("mnist_mlp", "r=2,c=2", "", &[]);
    let (project, mut sources) = loaded(&ProjectOptions { layout: None, mesh: None, ..base.clone() });
    let step = training_step(&project.program).unwrap();
    let mut partitionings = 0;
    for layout in fifty() {
        let o = ProjectOptions { layout: Some(layout), ..base.clone() };
        let (laid_out, found) = project.with_layout(&o, &mut sources);
        let laid_out = laid_out.unwrap_or_else(|| panic!("{found:?}"));
        let mut count = |i: usize, _: meshwright_core::compile::Stage<'_>| {
            partitionings += usize::from(PASSES[i].name == "partition");
        };
        let compiled = laid_out.compile_observed(&step, &sources, &mut count).0.unwrap();
        let (fresh, its) = loaded(&o);
        let again = fresh.compile(&training_step(&fresh.program).unwrap(), &its).0.unwrap();
        assert!(compiled.plan.to_json() == again.plan.to_json(), "{:?}", o.layout);
    }
    assert_eq!((project.resolutions(), partitionings), (1, 50));
}

/// Fifty layouts of `mnist_mlp` on r=2,c=2 under which nothing is gathered that no rule allows.
fn fifty() -> Vec<String> {
    let batch = ["batch -> r", "batch -> c", "batch -> r, c", "batch -> c, r", ""];
    let more = [
        "",
        "params: rows -> r",
        "params: cols -> c",
        "moments: rows -> r",
        "moments: cols -> c",
        "params: rows -> c",
        "params: cols -> r",
        "moments: rows -> c",
        "moments: cols -> r",
        "grads: rows -> r",
    ];
    batch.iter().flat_map(|b| more.map(|m| [*b, m].join("; ").trim_matches([';', ' ']).to_string())).collect()
}

/// The command reads a model once for all its layouts, answers for each, and fails where one fails.
#[test]
fn check_takes_several_layouts() {
    let layouts = fifty();
    let mut args = vec!["check", "mnist_mlp", "--mesh", "r=2,c=2", "--format", "json", "--time-passes"];
    layouts.iter().for_each(|l| args.extend(["--layout", l.as_str()]));
    let s = run(&args);
    assert_eq!(s.code, Some(0), "{}", s.err);
    let lines: Vec<Value> = s.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 50);
    for (line, layout) in lines.iter().zip(&layouts) {
        assert_eq!((&line["ok"], &line["layout"]), (&Value::from(true), &Value::from(layout.as_str())));
    }
    let times: Value = serde_json::from_str(s.err.lines().last().unwrap()).unwrap();
    let names = times["passes"].as_array().unwrap().iter().map(|p| p["pass"].as_str().unwrap());
    let count = |name: &str| names.clone().filter(|n| *n == name).count();
    assert_eq!((count("resolve"), count("step"), count("partition")), (1, 1, 50));

    let two = ["check", "mlp", "--mesh", "r=2", "--layout", "bacth -> r", "--layout", "batch -> r"];
    let s = run(&two);
    let out: Vec<&str> = s.out.lines().collect();
    assert_eq!((s.code, out[0]), (Some(1), "failed: bacth -> r"));
    assert!(
        out[1].starts_with("ok: batch -> r: 4 parameters, ") && s.err.contains("error[E0302]"),
        "{}",
        s.err
    );
    assert_eq!(run(&[&two[..], &["--emit", "plan"]].concat()).code, Some(2));
    assert_eq!(run(&["train", "mlp", "--layout", "dp", "--layout", "tp"]).code, Some(2));
}
