//! Training in 8 bits with scales by the history of maxima.

use super::bf16::{falls, kept_in_full, near, precise, write_block};
use super::fp8::{LAYOUTS, LOOPS};
use crate::support::{SMALL, Trained, attempted, folder, idx, options, root, run, trained};
use crate::training::text::tokenized;
use meshwright_core::training_step;
use meshwright_plan::{
    Arithmetic, BufId, Collective, DType, Fp8, Monoid, Phase, Plan, Prim, ProgramInputKind,
};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Devices, Project, ProjectOptions};
use std::path::Path;

/// The shipped or given model with a history of `steps` steps, as a file of the folder.
fn with_history(text: &str, steps: usize, name: &str, dir: &Path) -> String {
    let text: String = text.lines().filter(|l| !l.contains("precision ")).map(|l| format!("{l}\n")).collect();
    let train = text.rfind("\ntrain ").map(|at| at + text[at..].find('{').unwrap() + 1).unwrap();
    let (before, after) = text.split_at(train);
    let path = dir.join(format!("{name}.mw"));
    std::fs::write(&path, format!("{before}\n    precision fp8(history = {steps})\n{after}")).unwrap();
    path.display().to_string()
}

pub(super) fn shipped(model: &str, steps: usize, dir: &Path) -> String {
    let text = std::fs::read_to_string(root().join(format!("models/{model}.mw"))).unwrap();
    with_history(&text, steps, model, dir)
}

fn block(steps: usize, dir: &Path) -> String {
    let plain = write_block(dir);
    let text = std::fs::read_to_string(&plain).unwrap();
    with_history(&text, steps, "block_with_history", dir)
}

const SIZES: [(&str, usize); 6] =
    [("batch", 12), ("rows", 5), ("cols", 4), ("hidden1", 48), ("hidden2", 32), ("classes", 10)];

fn mlp(model: &str) -> ProjectOptions {
    options(model, "", "", &SIZES[..5])
}

/// Logarithm of the greatest power of two by which a maximum fits a format.
fn logarithm(format: Fp8, most: f64) -> f64 {
    (f64::from(format.greatest()) / most).log2().floor()
}

fn histories(of: &Trained) -> SortedMap<String, Vec<f64>> {
    let names = of.tensors.keys().filter(|name| name.starts_with("fp8/"));
    names.map(|name| (name.clone(), of.values(name))).collect()
}

/// A weight's history has the logarithms of its last maxima, the newest over the oldest.
#[test]
fn a_history_has_the_last_maxima() {
    let dir = folder(SMALL);
    let model = shipped("mnist_mlp", 3, dir.path());
    let mut most: Vec<f64> = Vec::new();
    for steps in 1..=7u64 {
        let now = trained(&mlp(&model), dir.path(), &format!("run-{steps}"), steps);
        let known = histories(&now);
        // The second layer: its weight, its operand, and the cotangent of its result.
        assert_eq!(known.len(), 3, "{:?}", known.keys());
        let weight = known.iter().find(|(name, _)| name.contains("h2.w")).unwrap().1;
        // What a step reads is what the one before has written.
        for (step, most) in most.iter().enumerate().skip(most.len().saturating_sub(2)) {
            let at = (step + 2) % 3;
            assert_eq!(weight[at], logarithm(Fp8::E4M3, *most), "step {} of {steps}: {known:?}", step + 2);
        }
        let values = now.values("h2.w").into_iter().map(|x| f64::from(half::bf16::from_f64(x)).abs());
        most.push(values.fold(0.0, f64::max));
        let written = |all: &Vec<f64>| all.iter().filter(|x| **x != 126.0).count();
        assert!(known.values().all(|all| written(all) == usize::min(steps as usize, 3)), "{known:?}");
    }
}

/// What losses of 80 steps may be apart by, of the first.
const NEAR: f64 = 0.03;

#[test]
fn a_transformer_trains_with_a_history_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = block(4, dir.path());
    let of = |mesh: &str, layout: &str| options(&model, mesh, layout, &[]);
    let half = trained(&precise(of("", ""), DType::BF16), dir.path(), "bf16", 80);
    assert_eq!(histories(&half).len(), 0, "other precisions have no history");
    let narrow = trained(&of("", ""), dir.path(), "fp8", 80);
    falls(&narrow, "block");
    kept_in_full(&narrow);
    near(&half, &narrow, NEAR, "fp8 with a history, next to bf16");
    assert!(!histories(&narrow).is_empty());
    for (i, (mesh, layout, _)) in LAYOUTS.into_iter().enumerate() {
        let split = trained(&of(mesh, layout), dir.path(), &format!("split-{i}"), 80);
        near(&narrow, &split, NEAR, &format!("block on {mesh}, {layout}"));
        scales_agree(&narrow, &split, &format!("{mesh}, {layout}"));
    }
}

/// Logarithms of scales differ by one at most, where rounding moves a maximum past a power of two; most of them are equal.
fn scales_agree(one: &Trained, split: &Trained, name: &str) {
    let [one, split] = [one, split].map(histories);
    assert!(one.keys().eq(split.keys()), "{name}: {:?}, {:?}", one.keys(), split.keys());
    let pairs: Vec<(f64, f64)> =
        one.iter().flat_map(|(path, all)| all.iter().copied().zip(split[path].iter().copied())).collect();
    let equal = pairs.iter().filter(|(a, b)| a == b).count();
    assert!(pairs.iter().all(|(a, b)| (a - b).abs() <= 1.0), "{name}: {one:?}, {split:?}");
    assert!(equal as f64 > 0.7 * pairs.len() as f64, "{name}: {equal} of {}", pairs.len());
}

/// A factor in a loop has a history for each iteration, also where iterations are stages, and where parts of the batch come one
/// after the other.
#[test]
fn gpt_trains_with_a_history_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let model = shipped("gpt", 4, dir.path());
    let sizes = [("batch", 8), ("seq", 14), ("vocab", 320), ("layers", 2), ("heads", 4), ("d_head", 4)];
    let sizes = [&sizes[..], &[("d_ff", 16), ("places", 16)]].concat();
    let of = |mesh: &str, layout: &str| ProjectOptions {
        preset: Some("tiny".into()),
        sets: [("lr", 1e-2), ("warmup", 4.0)].map(|(name, x)| (name.into(), x)).into(),
        ..options(&model, mesh, layout, &sizes)
    };
    let one = trained(&of("", ""), dir.path(), "one", 30);
    falls(&one, "gpt");
    for (path, tensor) in one.tensors.iter().filter(|t| t.0.starts_with("fp8/")) {
        assert_eq!(tensor.shape, [2, 4], "{path}");
    }
    for (i, (mesh, layout)) in LOOPS.into_iter().enumerate() {
        let split = trained(&of(mesh, layout), dir.path(), &format!("split-{i}"), 30);
        kept_in_full(&split);
        near(&one, &split, NEAR, &format!("gpt on {mesh}, {layout}"));
        scales_agree(&one, &split, &format!("{mesh}, {layout}"));
    }
}

/// Layouts by which `*` splits values: the batch is their largest dim, and histories count 252 logarithms.
const ANY_DIM: [(&str, &str); 5] = [
    ("a=4", "* -> a"),
    ("a=4", "batch -> a; * -> a"),
    ("a=2,b=2", "* -> a, b"),
    ("a=2,b=2", "batch -> a; * -> a, b; gather rows"),
    ("a=2", "batch -> a; * -> a; microbatches 2"),
];

/// `*` means dims of the model: a layout that fits it splits no dim of a history.
#[test]
fn any_dim_is_none_of_a_history() {
    let dir = folder(SMALL);
    let model = shipped("mnist_mlp", 3, dir.path());
    let of = |mesh: &str, layout: &str| ProjectOptions {
        dims: [("batch", 60)].iter().chain(&SIZES[1..5]).map(|(n, s)| (n.to_string(), *s)).collect(),
        ..options(&model, mesh, layout, &[])
    };
    let one = trained(&of("", ""), dir.path(), "one", 40);
    falls(&one, "mnist_mlp");
    for (i, (mesh, layout)) in ANY_DIM.into_iter().enumerate() {
        let split = trained(&of(mesh, layout), dir.path(), &format!("split-{i}"), 40);
        near(&one, &split, NEAR, &format!("{mesh}, {layout}"));
        scales_agree(&one, &split, &format!("{mesh}, {layout}"));
    }
}

fn tiny_near_bf16(model: &str, tokens: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), tokens);
    let with = shipped(model, 16, dir.path());
    let of = |precision| ProjectOptions {
        preset: Some("tiny".into()),
        sets: vec![("warmup".into(), 5.0)],
        precision,
        ..options(&with, "", "", &[("vocab", 320), ("batch", 8)])
    };
    let half = trained(&of(Some(Arithmetic::BF16)), dir.path(), "bf16", 40);
    let narrow = trained(&of(None), dir.path(), "fp8", 40);
    falls(&narrow, model);
    near(&half, &narrow, 0.03, model);
}

#[test]
fn gpt_tiny_trains_as_in_bf16() {
    tiny_near_bf16("gpt", &["--train", "bpe", "--vocab", "320"]);
}

#[test]
fn bert_tiny_trains_as_in_bf16() {
    tiny_near_bf16("bert", &["--train", "wordpiece", "--vocab", "320", "--task", "masked"]);
}

/// Steps that a value of the Plan is computed of.
fn ancestors(plan: &Plan, of: BufId) -> SortedSet<usize> {
    let writers: SortedMap<BufId, usize> =
        plan.steps.iter().enumerate().flat_map(|(at, s)| s.writes.iter().map(move |w| (w.buf, at))).collect();
    let (mut seen, mut todo) = (SortedSet::new(), vec![of]);
    while let Some(buf) = todo.pop() {
        if let Some(at) = writers.get(&buf).filter(|at| seen.insert(**at)) {
            todo.extend(plan.steps[*at].reads.iter().map(|r| r.buf));
        }
    }
    seen
}

/// No product waits for other devices to agree on a maximum; the next state does.
#[test]
fn no_product_waits_for_a_maximum() {
    let dir = folder(SMALL);
    let planned = |model: &str, precision| {
        let o = ProjectOptions { precision, ..options(model, "a=2", "batch -> a", &SIZES[..5]) };
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        project.compile(&training_step(&project.program).unwrap(), &loaded.sources).0.unwrap().plan
    };
    let waits = |plan: &Plan| {
        let folds = |at: usize| {
            let how = &plan.steps[at].prim;
            matches!(how, Prim::Collective(Collective::AllReduce { monoid: Monoid::Max | Monoid::Min, .. }))
        };
        let products = plan.steps.iter().filter(|s| s.prim == Prim::Contract && s.phase != Phase::Update);
        let read = products.flat_map(|s| s.reads.iter().map(|r| r.buf));
        read.filter(|buf| ancestors(plan, *buf).iter().any(|at| folds(*at))).count()
    };
    let with = planned(&shipped("mnist_mlp", 3, dir.path()), None);
    let without = planned("mnist_mlp", Some(Arithmetic::FP8));
    assert_eq!(waits(&with), 0);
    assert!(waits(&without) > 2, "{}", waits(&without));
    let states = with.program_inputs.iter().filter(|i| i.kind == ProgramInputKind::OptimizerState);
    assert_eq!(states.filter(|i| i.name.starts_with("fp8/")).count(), 3);
}

/// A run that goes on has the losses of one that did not stop; one that goes on in another precision, or with another history,
/// begins a new one.
#[test]
fn a_history_goes_on() {
    let dir = folder(SMALL);
    let [three, five] = [3, 5].map(|steps| {
        std::fs::create_dir_all(dir.path().join(steps.to_string())).unwrap();
        shipped("mnist_mlp", steps, &dir.path().join(steps.to_string()))
    });
    let data = dir.path().join("data").display().to_string();
    let sizes = SIZES[..5].iter().flat_map(|(name, size)| ["--dim".to_string(), format!("{name}={size}")]);
    let sizes: Vec<String> = sizes.collect();
    let train = |model: &str, name: &str, more: &[&str]| {
        let at = dir.path().join(name).display().to_string();
        let mut args = vec!["train", model, "--data", &data, "--run", &at];
        args.extend(sizes.iter().map(String::as_str).chain(more.iter().copied()));
        let said = run(&args);
        assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
        crate::support::tensors(&dir.path().join(name))
    };
    let whole = train(&three, "whole", &["--steps", "10"]);
    train(&three, "parts", &["--steps", "5"]);
    let parts = train(&three, "parts", &["--steps", "10", "--resume"]);
    assert_eq!(whole, parts);
    assert!(whole.keys().any(|name| name.starts_with("fp8/")));
    let other = train(&three, "parts", &["--steps", "12", "--resume", "--precision", "bf16"]);
    assert!(!other.keys().any(|name| name.starts_with("fp8/")));
    let back = train(&three, "parts", &["--steps", "14", "--resume", "--precision", "fp8"]);
    assert_eq!(back.keys().filter(|name| name.starts_with("fp8/")).count(), 3);
    let longer = train(&five, "parts", &["--steps", "16", "--resume"]);
    let shapes: Vec<_> = longer.iter().filter(|t| t.0.starts_with("fp8/")).map(|t| &t.1.shape).collect();
    assert_eq!(shapes, [&[5], &[5], &[5]]);
}

/// Each example is 250, and the first hidden value 1000 times `FIRST`.
const GREAT: &str = "
dim batch = 2, zero = 1, one = 1, two = 1, three = 1

model great {
    input image[batch, zero]: u8
    param first[zero, one] = FIRST
    param second[one, two] = 1
    param third[two, three] = 1
    let hidden = sum[zero](cast(image, float) * 4 * first)
    let next   = sum[one](hidden * second)
    let last   = sum[two](next * third)
    loss fit   = mean[batch, three](last)
}

train great {
    minimize fit
    optimizer sgd(lr = 0)
    precision fp8(history = 2)
}
";

/// What is beyond a history's maximum is the greatest number, and the next step knows better. What is not finite stays visible.
#[test]
fn what_is_too_great_is_the_greatest_number() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(data.join("image"), idx(&[8, 1], &[250; 8])).unwrap();
    let split = "image = \"image\"\n";
    std::fs::write(data.join("data.toml"), format!("[train]\n{split}[test]\n{split}")).unwrap();
    let model = |first: &str| {
        let path = dir.path().join(format!("great-{first}.mw"));
        std::fs::write(&path, GREAT.replace("FIRST", first)).unwrap();
        path.display().to_string()
    };
    let finite = trained(&options(&model("1"), "", "", &[]), dir.path(), "finite", 3);
    // The nearest number of E4M3 to 1000 / 4 is 256.
    assert_eq!(finite.losses, [448.0, 1024.0, 1024.0]);
    let model = options(&model("1e37"), "", "", &[]);
    let told = attempted(&Devices::default(), &model, dir.path(), "infinite", 3).err().unwrap();
    assert!(told.contains("E0517"), "{told}");
}
