//! Training in 8 bits: which products have factors of E4M3 and E5M2, and what that does to losses.

use super::bf16::{falls, kept_in_full, near, precise, report, write_block};
use crate::support::{SMALL, Trained, folder, options, run, trained, trained_on};
use crate::training::text::tokenized;
use meshwright_core::{StepGraph, evaluation, training_step};
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::launch::{Launch, LaunchKind};
use meshwright_device::target::Target;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{Arithmetic, BufId, Collective, DType, Fp8, Monoid, Phase, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_train::{Devices, Project, ProjectOptions};

fn in_fp8(o: ProjectOptions) -> ProjectOptions {
    ProjectOptions { precision: Some(Arithmetic::FP8), ..o }
}

/// A model with its tiny preset, if it has one.
pub(super) fn tiny(model: &str, mesh: &str, layout: &str) -> ProjectOptions {
    let preset = Some("tiny".to_string()).filter(|_| !model.starts_with("mnist"));
    in_fp8(ProjectOptions { preset, ..options(model, mesh, layout, &[]) })
}

pub(super) fn planned(o: &ProjectOptions, step: fn(&Project) -> StepGraph) -> Plan {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{o:?}: {:?}", loaded.diagnostics));
    let (compiled, found) = project.compile(&step(&project), &loaded.sources);
    compiled.unwrap_or_else(|| panic!("{o:?}: {found:?}")).plan
}

pub(super) fn training(project: &Project) -> StepGraph {
    training_step(&project.program).unwrap()
}

fn evaluating(project: &Project) -> StepGraph {
    evaluation(&project.program).0.unwrap().step
}

/// The format to which each buffer is rounded, where a step rounds it, or a collective moves what is.
fn formats(plan: &Plan) -> SortedMap<BufId, Fp8> {
    let mut found = SortedMap::new();
    for step in &plan.steps {
        match &step.prim {
            Prim::Map { expr, regs } => {
                for (out, reg) in step.writes.iter().zip(regs) {
                    // `bf16(mul(round_e4m3(…), inverse))`: what scales back is behind the rounding.
                    let mut at = usize::from(*reg);
                    let format = loop {
                        match expr.nodes[at].scalar {
                            Scalar::Unary(f, _) => break f.rounds_to(),
                            Scalar::Cast(of) => at = usize::from(of),
                            Scalar::Binary(_, a, b) => {
                                let rounds = |r: &meshwright_plan::expr::Reg| matches!(expr.nodes[usize::from(*r)].scalar, Scalar::Unary(f, _) if f.rounds_to().is_some());
                                match [a, b].into_iter().find(rounds) {
                                    Some(of) => at = usize::from(of),
                                    None => break None,
                                }
                            }
                            _ => break None,
                        }
                    };
                    found.extend(format.map(|format| (out.buf, format)));
                }
            }
            Prim::Collective(how) if !how.kind().folds() => {
                for (to, from) in step.writes.iter().zip(&step.reads) {
                    let format = found.get(&from.buf).copied();
                    found.extend(format.map(|format| (to.buf, format)));
                }
            }
            _ => {}
        }
    }
    found
}

/// A product by the path of its value, and the formats of its factors.
fn products(plan: &Plan) -> Vec<(&Step, String, [Option<Fp8>; 2])> {
    let formats = formats(plan);
    let contracts = plan.steps.iter().filter(|s| s.prim == Prim::Contract && s.phase != Phase::Update);
    let of = |s: &Step| [0, 1].map(|i| formats.get(&s.reads[i].buf).copied());
    contracts.map(|s| (s, s.origin[0].path.to_string(), of(s))).collect()
}

/// Paths of the products with factors of 8 bits, and of the others. Cotangents are E5M2, all else is E4M3.
fn divided(plan: &Plan) -> [SortedSet<String>; 2] {
    let [mut eight, mut others] = [SortedSet::new(), SortedSet::new()];
    for (step, path, formats) in products(plan) {
        match formats {
            [None, None] => drop(others.insert(path)),
            [Some(a), Some(b)] => {
                let gradients = [a, b].iter().filter(|f| **f == Fp8::E5M2).count();
                assert_eq!(gradients, usize::from(step.phase == Phase::Backward), "{path}: {formats:?}");
                eight.insert(path);
            }
            _ => panic!("{path} has one factor of 8 bits: {formats:?}"),
        }
    }
    [eight, others]
}

fn names(of: &SortedSet<String>) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

fn of_forward(all: &SortedSet<String>) -> Vec<&str> {
    names(all).into_iter().filter(|path| !path.starts_with("d(")).collect()
}

#[test]
fn products_of_layers_have_8_bits_but_not_the_first_and_the_last() {
    let [eight, others] = divided(&planned(&tiny("mnist_mlp", "", ""), training));
    assert_eq!(names(&eight), ["d(h1)", "d(h2.w)", "h2"]);
    assert_eq!(names(&others), ["d(h1.w)", "d(h2)", "d(logits.w)", "h1", "logits"]);
    let block = |layer: &str| -> Vec<String> {
        ["q", "k", "v", "out"].iter().map(|part| format!("{layer}attention.{part}")).collect()
    };
    let with = |layer: &str, more: &[&str]| -> SortedSet<String> {
        block(layer).into_iter().chain(more.iter().map(|part| format!("{layer}{part}"))).collect()
    };
    let mut switch = with("layers.block.dense.", &["mlp.up", "mlp.down"]);
    switch.extend(with("layers.block.", &["switch.h", "switch.y"]));
    let mut bert = with("layers.", &["feed_forward.up", "feed_forward.down"]);
    bert.insert("transform".into());
    // Of each model also what is left: the last layer, and how experts are chosen.
    for (model, wanted, left) in [
        ("gpt", with("layers.block.", &["mlp.up", "mlp.down"]), &["logits"][..]),
        ("bert", bert, &["logits"]),
        ("switch", switch, &["layers.block.switch.even", "layers.block.switch.router", "logits"]),
    ] {
        let plan = planned(&tiny(model, "", ""), training);
        let [eight, others] = divided(&plan);
        assert_eq!(of_forward(&eight), names(&wanted), "{model}");
        assert_eq!(of_forward(&others), left, "{model}");
        let all = products(&plan);
        let counted = |phase| all.iter().filter(|p| p.0.phase == phase && p.2[0].is_some()).count();
        assert_eq!(counted(Phase::Forward), wanted.len(), "{model}");
        assert_eq!(counted(Phase::Backward), 2 * wanted.len(), "{model}");
        // An evaluation rounds what a training does in its forward pass.
        let [evaluated, _] = divided(&planned(&tiny(model, "", ""), evaluating));
        assert_eq!(evaluated, wanted, "{model}");
    }
}

/// What is multiplied is stored in 2 bytes, in stacks for the backward pass too.
#[test]
fn factors_are_stored_as_bf16() {
    for (model, layout) in [("gpt", ""), ("bert", ""), ("gpt", "recompute layers.*")] {
        let in_8_bits = planned(&tiny(model, "", layout), training);
        for (step, path, formats) in products(&in_8_bits) {
            if formats[0].is_some() {
                let dtypes = step.reads.iter().map(|o| in_8_bits.buffer(o.buf).dtype);
                assert!(dtypes.into_iter().all(|d| d == DType::BF16), "{model}: {path}");
            }
        }
        let o = ProjectOptions { precision: Some(Arithmetic::BF16), ..tiny(model, "", layout) };
        let [peak, of_bf16] = [&in_8_bits, &planned(&o, training)].map(|p| p.summary.peak_bytes as f64);
        report(&format!("{model}, `{layout}`: peak {:.3} of that in bf16", peak / of_bf16));
        assert!(peak < 1.05 * of_bf16, "{model}: {peak} bytes, in bf16 {of_bf16}");
    }
}

/// The greatest magnitude is that of the whole value: where a layout splits it, devices agree on it.
#[test]
fn a_scale_is_that_of_the_whole_value() {
    let folds =
        |s: &&Step| matches!(&s.prim, Prim::Collective(Collective::AllReduce { monoid: Monoid::Max, .. }));
    // Several in a bucket are one step.
    let maxima = |mesh: &str, layout: &str| -> usize {
        let plan = planned(&tiny("mnist_mlp", mesh, layout), training);
        plan.steps.iter().filter(folds).map(|s| s.writes.len()).sum()
    };
    assert_eq!(maxima("", ""), 0);
    assert_eq!(maxima("a=2", "params: * -> a"), 1, "the weight");
    assert_eq!(maxima("a=2", "batch -> a"), 2, "the activation and the cotangent");
    assert_eq!(maxima("a=2", "hidden1 -> a"), 2, "the activation and the weight");
}

/// What losses of 80 steps may be apart by, of the first: where all sums but those of gradients are of one device, every factor
/// is rounded alike.
const ALIKE: f64 = 1e-5;
/// Where a sum of an activation is rounded in parts.
const ROUNDED: f64 = 0.03;

pub(super) const LAYOUTS: [(&str, &str, f64); 9] = [
    ("data=3", "batch -> data", ALIKE),
    // The dim that products sum over, and the one that they give.
    ("model=2", "heads, ff -> model", ROUNDED),
    ("model=3", "d -> model", ROUNDED),
    ("data=2,model=2", "batch -> data; heads, ff, words -> model", ROUNDED),
    ("data=4", "zero3", ALIKE),
    ("data=2", "batch -> data; params: * -> data; keep params", ALIKE),
    ("t=2", "seq -> t; gather key", ROUNDED),
    ("", "microbatches 3", ALIKE),
    ("data=2", "batch -> data; params: * -> data; microbatches 2", ALIKE),
];

#[test]
fn a_transformer_trains_in_fp8_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_block(dir.path());
    let of = |mesh: &str, layout: &str| options(&model, mesh, layout, &[]);
    let half = trained(&precise(of("", ""), DType::BF16), dir.path(), "bf16", 80);
    let narrow = trained(&in_fp8(of("", "")), dir.path(), "fp8", 80);
    falls(&narrow, "block");
    kept_in_full(&narrow);
    near(&half, &narrow, 0.03, "fp8 beside bf16");
    assert_ne!(half.losses, narrow.losses, "nothing was rounded");
    for (i, (mesh, layout, within)) in LAYOUTS.into_iter().enumerate() {
        let split = trained(&in_fp8(of(mesh, layout)), dir.path(), &format!("split-{i}"), 80);
        near(&narrow, &split, within, &format!("block on {mesh}, {layout}"));
    }
}

/// Trains the tiny preset of a model of text in `bf16` and in `fp8`, on the same examples.
fn tiny_beside_bf16(model: &str, tokens: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), tokens);
    let sets = [("warmup", 5.0)].map(|(name, x)| (name.to_string(), x)).to_vec();
    let of = |precision| ProjectOptions {
        preset: Some("tiny".into()),
        sets: sets.clone(),
        precision: Some(precision),
        ..options(model, "", "", &[("vocab", 320), ("batch", 8)])
    };
    let [half, narrow] = [Arithmetic::BF16, Arithmetic::FP8]
        .map(|precision| trained(&of(precision), dir.path(), precision.name(), 40));
    falls(&narrow, model);
    kept_in_full(&narrow);
    near(&half, &narrow, 0.03, model);
    assert_ne!(half.losses, narrow.losses, "{model}: nothing was rounded");
}

#[test]
fn gpt_tiny_trains_as_in_bf16() {
    tiny_beside_bf16("gpt", &["--train", "bpe", "--vocab", "320"]);
}

#[test]
fn bert_tiny_trains_as_in_bf16() {
    tiny_beside_bf16("bert", &["--train", "wordpiece", "--vocab", "320", "--task", "masked"]);
}

/// Of a model with loops: stages, shards of all that is stored, parts of the batch, values that are computed again.
pub(super) const LOOPS: [(&str, &str); 7] = [
    ("model=2", "heads, d_ff, vocab -> model"),
    ("data=2", "batch -> data; params: * -> data; microbatches 2; keep params; recompute layers.*"),
    ("data=3", "zero3"),
    (
        "data=2,model=2",
        "batch -> data; heads, d_ff -> model; params: * -> data; microbatches 4; reduce grads once",
    ),
    ("pipe=2", "layers -> pipe; microbatches 4"),
    ("data=2,pipe=2", "batch -> data; layers -> pipe; params: * -> data; microbatches 4; schedule zb_h1"),
    ("ctx=2", "seq -> ctx; ring key"),
];

#[test]
fn gpt_trains_in_fp8_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let sizes = [("batch", 8), ("seq", 14), ("vocab", 320), ("layers", 2), ("heads", 4), ("d_head", 4)];
    let sizes = [&sizes[..], &[("d_ff", 16), ("places", 16)]].concat();
    let of = |mesh: &str, layout: &str| ProjectOptions {
        preset: Some("tiny".into()),
        sets: [("lr", 1e-2), ("warmup", 4.0)].map(|(name, x)| (name.into(), x)).into(),
        ..in_fp8(options("gpt", mesh, layout, &sizes))
    };
    let one = trained(&of("", ""), dir.path(), "one", 30);
    falls(&one, "gpt");
    for (i, (mesh, layout)) in LOOPS.into_iter().enumerate() {
        let split = trained(&of(mesh, layout), dir.path(), &format!("split-{i}"), 30);
        kept_in_full(&split);
        near(&one, &split, 0.002, &format!("gpt on {mesh}, {layout}"));
    }
}

/// The matmuls of a training step on a GPU with factors of 8 bits in memory, and the reasons of the others.
fn in_8_bits(plan: &Plan) -> (usize, Vec<String>) {
    let device = meshwright_device::compile(plan, 0, Target::h100()).unwrap();
    let of_codes = |launch: &&Launch| match &launch.kind {
        LaunchKind::Kernel(Kernel::MatmulEpilogue(call)) => matches!(call.digits, FactorDigits::Fp8(_)),
        _ => false,
    };
    let declined = device.fp8_declined.values().map(ToString::to_string).collect();
    (device.launches.iter().filter(of_codes).count(), declined)
}

/// The launches of a GPU, with a plain kernel for each on the host: of extents that kernels for 8 bits take, and of others.
#[test]
fn a_gpu_computes_what_threads_do() {
    let dir = folder(SMALL);
    for (batch, count) in [(12, 0), (16, 3)] {
        let sizes = [("batch", batch), ("rows", 5), ("cols", 4), ("hidden1", 48), ("hidden2", 32)];
        let o = in_fp8(options("mnist_mlp", "", "", &sizes));
        let (found, declined) = in_8_bits(&planned(&o, training));
        assert_eq!((found, declined.len()), (count, 3 - count), "{declined:?}");
        let name = |of: &str| format!("{of}-{batch}");
        let threads = trained(&o, dir.path(), &name("threads"), 30);
        let device = meshwright_burn::reference();
        let gpu: Trained =
            trained_on(&Devices { device, ..Devices::default() }, &o, dir.path(), &name("gpu"), 30);
        near(&threads, &gpu, 0.01, "launches of a GPU");
    }
}

/// All matmuls of layers of transformers are in 8 bits on a GPU, also those of a device with a part of the weights; where
/// weights are gathered, those alone that read none.
#[test]
fn matmuls_of_transformers_are_in_8_bits_on_a_gpu() {
    for model in ["gpt", "bert"] {
        for (mesh, layout) in [("", ""), ("c=2", "heads, d_ff -> c"), ("d=2", "batch -> d")] {
            let plan = planned(&tiny(model, mesh, layout), training);
            let all = products(&plan).iter().filter(|(_, _, formats)| formats[0].is_some()).count();
            let (found, declined) = in_8_bits(&plan);
            assert!(
                all >= 18 && (found, &declined[..]) == (all, &[]),
                "{model} on {mesh}: {found} of {all}, {declined:?}"
            );
        }
    }
    let sharded = planned(&tiny("gpt", "d=2", "batch -> d; params: * -> d"), training);
    let (found, declined) = in_8_bits(&sharded);
    let moved = |why: &&String| why.contains("it is moved in between") || why.contains("is also read by");
    assert!(!declined.is_empty() && declined.iter().all(|why| moved(&why)), "{found}, {declined:?}");
}

/// What a GPU rounds to 8 bits is a kernel of its own: no operation of Burn.
#[test]
fn kernels_of_a_gpu_round() {
    let plan = planned(&tiny("gpt", "", ""), training);
    let device = meshwright_device::compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
    let rounds = |step: &Step| {
        let Prim::Map { expr, .. } = &step.prim else { return false };
        let in_8_bits = |s: &Scalar| matches!(s, Scalar::Unary(f, _) if f.rounds_to().is_some());
        expr.nodes.iter().any(|n| in_8_bits(&n.scalar))
    };
    let (mut factors, mut others) = (0, vec![]);
    for launch in device.launches.iter() {
        let rounding: Vec<_> = launch.steps.iter().filter(|at| rounds(&plan.steps[**at])).collect();
        let Some(at) = rounding.first() else { continue };
        match &launch.kind {
            LaunchKind::Kernel(Kernel::Map(_) | Kernel::Rows(_) | Kernel::Fp8Factor(_)) => {
                factors += rounding.len();
            }
            other => others.push(format!("{}: {other:?}", plan.steps[**at].origin[0].path)),
        }
    }
    assert!(factors > 20 && others.is_empty(), "{factors} factors, not {others:?}");
    // The weights of a layer are one launch.
    let weights = device.launches.iter().filter(|launch| match &launch.kind {
        LaunchKind::Kernel(Kernel::Fp8Factor(calls)) => calls.0.len() == 6,
        _ => false,
    });
    assert!(weights.count() > 0);
}

#[test]
fn a_run_goes_on_in_fp8_and_is_evaluated() {
    let dir = folder(SMALL);
    let at = dir.path().join("run").display().to_string();
    let data = dir.path().join("data").display().to_string();
    let sizes = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden1=32"];
    let train = |more: &[&str]| {
        run(&[&["train", "mnist_mlp", "--data", &data, "--run", &at], &sizes[..], more].concat())
    };
    let said = train(&["--steps", "10", "--precision", "fp8"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for (steps, precision) in [("20", "bf16"), ("30", "fp8")] {
        let said = train(&["--steps", steps, "--precision", precision, "--resume"]);
        assert_eq!(said.code, Some(0), "{}", said.err);
        let told = format!("precision: {precision}");
        assert!(said.err.contains(&told) || said.out.contains(&told), "{}{}", said.out, said.err);
    }
    let said = run(&["eval", "mnist_mlp", "--checkpoint", &at, "--data", &data, "--precision", "fp8"]
        .iter()
        .chain(&sizes)
        .copied()
        .collect::<Vec<_>>());
    assert_eq!(said.code, Some(0), "{}", said.err);
}

/// A device that multiplies no FP8 runs products of 8 bits as those of `bf16`: a note says so of what a device does, and of how
/// long it takes.
#[test]
fn a_note_says_how_products_run() {
    for (args, noted) in [
        (&["explain", "mnist_mlp", "--device", "cpu", "--no-pager"][..], true),
        (&["explain", "mnist_mlp", "--emit", "device"], true),
        (&["estimate", "mnist_mlp", "--machine", "dgx-a100-40g"], true),
        (&["explain", "mnist_mlp", "--device", "cuda", "--no-pager"], false),
        (&["explain", "mnist_mlp", "--emit", "device", "--device", "cuda"], false),
        (&["estimate", "mnist_mlp", "--machine", "dgx-h100"], false),
    ] {
        let told = |precision: &str| {
            let said = run(&[args, &["--precision", precision]].concat());
            assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
            said.err.contains("products run, and are priced, as those of `bf16`")
        };
        assert_eq!(["fp8", "bf16"].map(told), [noted, false], "{args:?}");
    }
}

/// A matmul in 8 bits takes the time of the machine's rate for them, and where it stays in `bf16` a line of the report says why.
#[test]
fn estimates_and_reports_know_which_matmuls_are_in_8_bits() {
    let seconds = |machine: &str, precision: &str| {
        let args = ["estimate", "gpt", "--preset", "small", "--machine", machine, "--precision", precision];
        let said = run(&[&args[..], &["--format", "json"]].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        found["breakdown"]["matmul"].as_f64().unwrap_or_else(|| panic!("{found}"))
    };
    let [half, eight] = ["bf16", "fp8"].map(|precision| seconds("dgx-h100", precision));
    assert!(eight < 0.9 * half, "{eight} of {half}");
    let report = |layout: &[&str]| {
        let args =
            ["explain", "gpt", "--preset", "tiny", "--precision", "fp8", "--device", "cuda", "--no-pager"];
        let said = run(&[&args[..], layout].concat());
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.out
    };
    // Also of what is gathered in the iteration before.
    let apart = report(&["--mesh", "pipe=2", "--layout", "layers -> pipe; microbatches 4; schedule zb_h1"]);
    assert!(apart.contains("is also kept for a later loop"), "{apart}");
    for overlap in [&[][..], &["--no-overlap"]] {
        let sharded = ["--mesh", "d=2", "--layout", "batch -> d; params: * -> d"];
        let said = report(&[&sharded[..], overlap].concat());
        assert!(said.contains("is not multiplied where it is rounded"), "{said}");
    }
    assert!(!report(&[]).contains("bf16       `"), "all are in 8 bits");
}
