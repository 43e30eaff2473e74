//! Losses over large products in parts of their rows: the same numbers but for rounding, in less memory.

use crate::support::options;
use meshwright_core::lowering::LossParts;
use meshwright_core::{CompileOptions, compile_with, training_step};
use meshwright_device::compile;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::LaunchKind;
use meshwright_device::target::Target;
use meshwright_exec::{Cluster, ClusterOptions, DeviceKind, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{Arithmetic, DType, Plan, Prim};
use meshwright_train::{Project, ProjectOptions};
use std::sync::Arc;

/// Cuts all there is.
const SMALL: LossParts = LossParts { bytes: 0, rows: 6, parts: 4 };
const NEVER: LossParts = LossParts { bytes: u64::MAX, ..SMALL };

/// Sizes where logits are the most of what is there.
const DIMS: &[(&str, usize)] = &[
    ("batch", 8),
    ("seq", 6),
    ("places", 6),
    ("vocab", 1013),
    ("layers", 1),
    ("heads", 2),
    ("d_head", 2),
    ("d_ff", 6),
];

/// The training step, or the evaluation of a model that is not trained.
fn plan(options: &ProjectOptions, parts: LossParts) -> Plan {
    let loaded = Project::load(options);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap_or_else(|| project.evaluation().0.unwrap().step);
    let with = CompileOptions { parts, ..CompileOptions::default() };
    let (compiled, found) = compile_with(&step, &project.layout, &|_| 0, with, &mut |_, _| {});
    compiled.unwrap_or_else(|| panic!("{found:?}")).plan
}

/// The parts of each loss of a Plan that has some.
fn parts(plan: &Plan) -> Vec<usize> {
    let of = |at: usize| {
        plan.loops().into_iter().rfind(|l| l.contains(at) && plan.dims.name(l.dim).contains(".part"))
    };
    let losses = (0..plan.steps.len()).filter(|at| matches!(plan.steps[*at].prim, Prim::CrossEntropy { .. }));
    losses.filter_map(of).map(|l| plan.dims.size(l.dim)).collect()
}

/// What a program gives in two steps on the CPU, and its state after them.
fn after_steps(plan: Plan) -> Vec<(String, HostTensor)> {
    after_steps_on(meshwright_cpu::device(), plan)
}

fn after_steps_on(device: DeviceKind, plan: Plan) -> Vec<(String, HostTensor)> {
    let plan = Arc::new(plan);
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(device)).unwrap();
    let id = cluster.load(plan).unwrap();
    cluster.init_state(id, 7).unwrap();
    // Each element of the whole has its value wherever it lies.
    let inputs: Provider = Arc::new(|step, leaves: &[LocalInput]| {
        let one = |l: &LocalInput| {
            let mut places = vec![0];
            for range in &l.ranges {
                places = places.iter().flat_map(|p| range.clone().map(move |i| p * 31 + i)).collect();
            }
            let bound = if l.name == "target" { 1013 } else { 2 };
            let value = |i: &usize| match l.dtype.is_float() {
                true => ((i * 37 + step) % 23) as f64 / 11.0,
                false => ((i * 7 + step) % bound) as f64,
            };
            let values = places.iter().map(value).collect();
            HostTensor::new(l.shape(), HostData::from_f64(l.dtype, values)).unwrap()
        };
        Ok(leaves.iter().map(one).collect())
    });
    let mut out = vec![];
    for step in 1..=2 {
        out.extend(cluster.run(id, step, &inputs).unwrap().outputs);
    }
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    out.extend(names.into_iter().map(|n| (n.clone(), cluster.state(&n).unwrap())));
    cluster.shutdown();
    out
}

/// The greatest difference, in units of the greatest number of a tensor.
fn off(one: &HostTensor, other: &HostTensor) -> f64 {
    let (one, other) = (one.data.to_f64(), other.data.to_f64());
    let most = other.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    let apart = one.iter().zip(&other).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f64::max) / most.max(1.0)
}

/// How far what is computed in parts may be from what is not.
fn compare(options: &ProjectOptions, expected: &[usize], bound: f64) {
    let what = format!("{}: {:?}", options.model, options.layout);
    let [cut, whole] = [SMALL, NEVER].map(|p| plan(options, p));
    assert_eq!((&parts(&cut)[..], parts(&whole).len()), (expected, 0), "{what}");
    let bytes = [&cut, &whole].map(|p| p.summary.peak_bytes);
    assert!(expected.is_empty() || bytes[0] < bytes[1], "{what}: {} bytes of {}", bytes[0], bytes[1]);
    let [one, other] = [cut, whole].map(after_steps);
    for ((name, a), (_, b)) in one.iter().zip(&other) {
        let off = off(a, b);
        assert!(off < bound, "{what}: {name} is {off:e} off");
    }
}

#[test]
fn the_same_numbers_in_parts_under_every_layout() {
    let runs: &[(&str, &str, &str, &[usize])] = &[
        ("gpt", "", "", &[4]),
        ("bert", "", "", &[4]),
        ("gpt", "data=2", "batch -> data", &[4]),
        ("gpt", "data=2", "zero3", &[4]),
        ("bert", "data=2", "zero3", &[4]),
        ("gpt", "s=2", "seq -> s; gather key", &[4]),
        // Twelve rows of each microbatch are on a device.
        ("gpt", "data=2", "batch -> data; microbatches 2", &[2]),
        ("gpt", "t=2", "vocab -> t", &[]),
    ];
    for (model, mesh, layout, expected) in runs {
        let options =
            ProjectOptions { precision: Some(Arithmetic::F64), ..options(model, mesh, layout, DIMS) };
        compare(&options, expected, 1e-12);
    }
}

/// A model whose logits are a function of a product and a bias, and whose loss is `LOSS`.
const CAPPED: &str = "dim batch = 24, d = 4, vocab = 613
model capped {
    input x[batch, d]: float
    input target[batch]: i32 in vocab
    param first[d] = 1
    param w[d, vocab] = normal(0, 1)
    param bias[vocab] = normal(0, 1)
    let logits = 5 * tanh((sum[d](x * first * (3 * w)) + bias + SHIFT) / 5)
    let each = cross_entropy[vocab](logits, target)
    loss l = LOSS
}
train capped {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

fn capped(loss: &str, shift: &str, precision: DType) -> (tempfile::TempDir, ProjectOptions) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("capped.mw");
    std::fs::write(&model, CAPPED.replace("LOSS", loss).replace("SHIFT", shift)).unwrap();
    let model = model.display().to_string();
    (
        dir,
        ProjectOptions {
            precision: Some(precision.into()),
            ..options(&model, "data=2", "batch -> data", &[])
        },
    )
}

/// What is between the product and the loss is in the loop too, with the positions of its rows, and sums of `bf16` are rounded
/// once.
#[test]
fn functions_of_logits_are_in_parts_too() {
    for (precision, bound) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 0.02)] {
        let shift = "cast(index(batch) == index(vocab), float)";
        let (_dir, options) = capped("mean[batch](each)", shift, precision);
        compare(&options, &[2], bound);
    }
}

#[test]
fn evaluations_are_in_parts_too() {
    let (dir, options) = capped("mean[batch](each)", "0", DType::F64);
    let file = dir.path().join("capped.mw");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.find("train").unwrap()]).unwrap();
    compare(&options, &[2], 1e-12);
}

/// A loss stays whole where its gradient needs the losses of all rows, or where something else needs the logits.
#[test]
fn what_needs_all_rows_stays_whole() {
    let all = [
        "mean[batch](each * each)",
        "mean[batch](each + logsumexp[vocab](logits) ** 2)",
        "mean[batch](each) + max[batch, vocab](logits)",
    ];
    for loss in all {
        let (_dir, options) = capped(loss, "0", DType::F64);
        compare(&options, &[], 1e-12);
    }
}

/// On a GPU each part's product for the gradient of the vocabulary is added where the sum so far lies, and gives what the CPU
/// does.
#[test]
fn the_gradient_of_the_vocabulary_is_added_in_its_place_on_a_gpu() {
    let layouts = [("", ""), ("data=2", "batch -> data; microbatches 2")];
    for (precision, bound) in [(Arithmetic::F32, 1e-4), (Arithmetic::BF16, 0.05)] {
        for (mesh, layout) in layouts {
            let options = ProjectOptions { precision: Some(precision), ..options("gpt", mesh, layout, DIMS) };
            let plan = plan(&options, SMALL);
            let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
            let adds = |kind: &LaunchKind| matches!(kind, LaunchKind::Kernel(Kernel::MatmulEpilogue(call)) if call.beside.adds());
            let added: Vec<_> = device.launches.iter().filter(|l| adds(&l.kind)).collect();
            let words = |l: &&&meshwright_device::launch::Launch| l.writes[0].shape.to_vec().contains(&1013);
            assert_eq!(added.iter().filter(words).count(), 1, "{layout} in {precision:?}");
            let of = |device| after_steps_on(device, plan.clone());
            let (cpu, gpu) = (of(meshwright_cpu::device()), of(meshwright_burn::reference()));
            for ((name, a), (_, b)) in gpu.iter().zip(&cpu) {
                let off = off(a, b);
                assert!(off < bound, "{layout} in {precision:?}: {name} is {off:e} off");
            }
        }
    }
}

/// Sums of microbatches and of parts are made in their places: of GPT small with eight microbatches an eighth of all bytes, 86
/// GB, is left out.
#[test]
fn gpt_small_sums_its_gradients_where_they_lie() {
    let bf16 = ProjectOptions {
        precision: Some(Arithmetic::BF16),
        preset: Some("small".into()),
        ..options("gpt", "", "microbatches 8", &[("batch", 16)])
    };
    let plan = plan(&bf16, LossParts::default());
    let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
    let updates = device
        .launches
        .ids()
        .filter(|id| matches!(device.launches[*id].kind, LaunchKind::Kernel(Kernel::IterationUpdate(_))));
    let moved: Vec<_> = updates.filter(|id| !device.arena.in_place.contains(id)).collect();
    assert!(moved.is_empty(), "{moved:?} put sums back");
    let totals = device.totals(&plan);
    let bytes = totals.traffic.read + totals.traffic.written;
    assert!(totals.kernels < 4_800 && bytes < 75_500_000_000, "{} kernels, {bytes} bytes", totals.kernels);
}

/// Logits of GPT small and their gradient are five of eleven gigabytes. Of the others 7.9 are live at once; the arena takes more.
#[test]
fn gpt_small_takes_eight_gigabytes() {
    let bf16 = ProjectOptions {
        precision: Some(Arithmetic::BF16),
        preset: Some("small".into()),
        ..options("gpt", "", "", &[("batch", 16)])
    };
    let [cut, whole] = [LossParts::default(), NEVER].map(|p| plan(&bf16, p));
    assert_eq!((parts(&cut), parts(&whole)), (vec![4], vec![]));
    let target = Target::cuda((9, 0), true);
    let peak = |plan| compile(plan, 0, target).unwrap().totals(plan).peak_bytes;
    let [cut, whole] = [&cut, &whole].map(peak);
    assert!(whole > 11_300_000_000 && cut < 8_200_000_000, "{cut} of {whole} bytes");
}
