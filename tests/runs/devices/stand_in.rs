//! What GPUs run, compiled for the host: trainings beside those of the own kernels, and the memory that a step takes beside
//! what the Plan says.

use crate::support::{
    SMALL, SMALL_DIMS, Trained, apart, command, folder, measured, options, run, trained_on,
};
use meshwright_exec::DeviceKind;
use meshwright_plan::DType;
use meshwright_train::{Devices, ProjectOptions};
use std::path::Path;

const STEPS: u64 = 5;

/// Shown with --nocapture and on failure.
#[allow(clippy::print_stderr, reason = "a figure of a test")]
fn report(text: &str) {
    eprintln!("{text}");
}

fn trained_by(device: DeviceKind, options: &ProjectOptions, folder: &Path, run: &str) -> Trained {
    trained_on(&Devices { device, ..Devices::default() }, options, folder, run, STEPS)
}

/// Losses, parameters and moments of both, on one device and on two that split the batch, or a hidden dim.
#[test]
fn trainings_are_those_of_the_cpu_compiled_for_the_host() {
    let dir = folder(SMALL);
    let dims = [SMALL_DIMS, &[("hidden1", 48), ("hidden2", 32)]].concat();
    for (precision, losses, values) in [(DType::F32, 1e-4, 1e-3), (DType::BF16, 1e-2, 1e-1)] {
        for (mesh, layout) in [("", ""), ("a=2", "batch -> a"), ("a=2", "hidden1 -> a")] {
            let name = format!("{precision} {layout}");
            let o = ProjectOptions {
                precision: Some(precision.into()),
                ..options("mnist_mlp", mesh, layout, &dims)
            };
            let own = trained_by(meshwright_cpu::device(), &o, dir.path(), &format!("own {name}"));
            let cube =
                trained_by(meshwright_cuda::compiled_on_host(), &o, dir.path(), &format!("cube {name}"));
            let off = own.losses.iter().zip(&cube.losses).map(|(a, b)| (a - b).abs() / a.abs());
            let off = off.fold(0.0, f64::max);
            report(&format!("{name}: losses are off by {off:.1e}, relative"));
            assert!(off < losses, "{name}: losses are off by {off:e}: {:?}, {:?}", own.losses, cube.losses);
            assert_eq!(own.tensors.len(), cube.tensors.len(), "{name}");
            for path in own.tensors.keys() {
                let off = apart(&own.values(path), &cube.values(path));
                assert!(off < values, "{name}: `{path}` is off by {off:e} of its greatest");
            }
        }
    }
}

/// Four layers, and an optimizer with two moments: sizes at which what an allocator rounds does not count.
const WIDE: &str = r"
dim batch = 256
dim features = 512, h1 = 512, h2 = 512, h3 = 512, classes = 10

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}

model wide {
    input x    [batch, features]: f32
    input label[batch]: i32 in classes
    let a      = relu(dense(x, [features], [h1]))
    let b      = relu(dense(a, [h1], [h2]))
    let c      = relu(dense(b, [h2], [h3]))
    let logits = dense(c, [h3], [classes])
    loss xent = mean[batch](cross_entropy[classes](logits, label))
}

train wide {
    minimize xent
    optimizer adam(lr = 1e-3)
}
";

/// Times a step of it.
fn benched(precision: &str, more: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("wide.mw");
    std::fs::write(&model, WIDE).unwrap();
    let model = model.display().to_string();
    let args = ["bench", "model", &model, "--device", "cubecl-cpu", "--precision", precision];
    let said = run(&[&args[..], &["--steps", "1", "--warmup", "1"], more].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    said.out
}

/// A step has 11 products: four forward, four for gradients of parameters, three for those of activations.
#[test]
fn kernels_of_a_step_are_counted_compiled_for_the_host() {
    let out = benched("f32", &["--format", "json"]);
    let found: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let kernels = found["kernels"].as_array().unwrap();
    let of = |k: &serde_json::Value| (k["launches"].as_u64().unwrap(), k["ms"].as_f64().unwrap());
    let all: Vec<(u64, f64)> = kernels.iter().map(of).collect();
    let (launches, ms) = all.iter().fold((0, 0.0), |sum, k| (sum.0 + k.0, sum.1 + k.1));
    report(&format!("{launches} kernels in {ms:.2} ms: {kernels:?}"));
    assert!((30..150).contains(&launches), "{kernels:?}");
    assert!(all.iter().any(|k| k.0 == 11), "{kernels:?}");
    assert!(all.is_sorted_by(|a, b| a.1 >= b.1) && all[0].1 > 0.0, "{kernels:?}");
    assert!(ms < found["median_ms"].as_f64().unwrap() * 5.0, "{out}");

    let out = benched("f32", &[]);
    assert!(out.contains(" kernels in a step, which run for "), "{out}");
}

#[test]
fn memory_is_what_the_plan_says_compiled_for_the_host() {
    for precision in ["f32", "bf16"] {
        let out = benched(precision, &["--format", "json"]);
        let found: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let bytes = |key: &str| found[key].as_f64().unwrap();
        let (planned, seen) = (bytes("plan_peak_bytes"), bytes("device_peak_bytes"));
        let ratio = seen / planned;
        report(&format!("{precision}: {seen} bytes in use at the peak, {planned} planned, {ratio:.5}"));
        assert!(
            (0.98..1.02).contains(&ratio),
            "{precision}: {seen} bytes in use, {planned} planned: {ratio:.3}"
        );
    }
}

/// The kernels that a first start tunes and compiles, a second one finds where `MESHWRIGHT_CACHE` says; a folder that cannot be
/// written is a note.
#[test]
fn a_second_start_tunes_nothing_compiled_for_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let start = |cache: &Path| {
        let args = ["bench", "model", "mnist_mlp", "--device", "cubecl-cpu", "--steps", "1", "--warmup", "1"];
        let (used, said) = measured(command(&args).env("MESHWRIGHT_CACHE", cache));
        assert_eq!(said.code, Some(0), "{}", said.err);
        (used.cpu, said.err)
    };
    let cache = dir.path().join("cache");
    let ((first, told), (second, _)) = (start(&cache), start(&cache));
    assert!(!told.contains("MESHWRIGHT_CACHE"), "{told}");
    assert!(cache.join("cubecl").read_dir().unwrap().count() > 0);
    report(&format!("first start {first:.1?}, second {second:.1?}"));
    assert!(second * 2 < first, "{first:?}, then {second:?}");
    let (_, told) = start(Path::new("/dev/null/cache"));
    assert!(
        told.contains("/dev/null/cache cannot be written") && told.contains("MESHWRIGHT_CACHE names"),
        "{told}"
    );
}
