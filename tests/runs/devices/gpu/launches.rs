//! Trainings by the device plan of a GPU, each launch by a plain kernel, beside those of the CPU's kernels: what fusions,
//! epilogues, kept bits and values that stay where they are decide, is run in ordinary tests, without a GPU.

use crate::support::{SMALL, SMALL_DIMS, apart, folder, options, trained_on};
use crate::training::text::tokenized;
use meshwright_exec::DeviceKind;
use meshwright_plan::DType;
use meshwright_train::{Devices, ProjectOptions};
use std::path::Path;

const STEPS: u64 = 3;

/// So many keys that the bits of dropout are drawn ahead, and widths that tensor cores take.
pub(crate) const TEXT: [(&str, usize); 7] =
    [("batch", 2), ("seq", 70), ("vocab", 320), ("layers", 2), ("heads", 2), ("d_head", 16), ("d_ff", 24)];

/// Losses and all tensors, in `f32` and in `bf16`, under some layouts.
pub(crate) fn are_those_of_the_cpu(
    model: &str,
    dims: &[(&str, usize)],
    layouts: &[(&str, &str)],
    folder: &Path,
) {
    for (precision, losses, values) in [(DType::F32, 2e-5, 2e-3), (DType::BF16, 5e-3, 3e-1)] {
        for (mesh, layout) in layouts {
            let tiny = !model.starts_with("mnist");
            let o = ProjectOptions {
                preset: tiny.then(|| "tiny".into()),
                precision: Some(precision.into()),
                ..options(model, mesh, layout, dims)
            };
            let by = |device: DeviceKind| {
                let run = format!("{model} {device} {precision} {mesh} {layout}");
                let devices = Devices { device, ..Devices::default() };
                trained_on(&devices, &o, folder, &run, STEPS)
            };
            let (cpu, gpu) = (by(meshwright_cpu::device()), by(meshwright_burn::reference()));
            let name = format!("{model} in {precision} under {layout:?}");
            let off = cpu.losses.iter().zip(&gpu.losses).map(|(a, b)| (a - b).abs() / a.abs());
            let off = off.fold(0.0, f64::max);
            assert!(off < losses, "{name}: losses are off by {off:e}: {:?}, {:?}", cpu.losses, gpu.losses);
            assert_eq!(cpu.tensors.len(), gpu.tensors.len(), "{name}");
            // The gradient of a key's bias is 0 but for roundings, which the optimizer makes a step of.
            for path in cpu.tensors.keys().filter(|path| !path.contains("attention.k.b")) {
                let off = apart(&cpu.values(path), &gpu.values(path));
                assert!(off < values, "{name}: `{path}` is off by {off:e} of its greatest");
            }
        }
    }
}

/// Biases and `relu` in products, with the bits of which elements it let through, and gradients of biases beside those of
/// weights.
#[test]
fn mnist_as_a_gpu_launches_it() {
    let dir = folder(SMALL);
    let mlp = [SMALL_DIMS, &[("hidden1", 24), ("hidden2", 16)]].concat();
    let conv = [&mlp[..], &[("kh", 3), ("kw", 3), ("filters1", 8), ("filters2", 16)]].concat();
    let layouts =
        [("", ""), ("a=2", "batch -> a"), ("a=2", "hidden1 -> a; params: * -> a"), ("", "microbatches 2")];
    are_those_of_the_cpu("mnist_mlp", &mlp, &layouts, dir.path());
    are_those_of_the_cpu("mnist_conv", &conv, &layouts[..2], dir.path());
}

pub(crate) const NEXT: [&str; 4] = ["--train", "bpe", "--vocab", "320"];

/// Norms, cross-entropy, attention with dropout and `gelu`, of layers in loops, whole, computed again, split and in parts of a
/// batch.
#[test]
fn gpt_as_a_gpu_launches_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &NEXT);
    let layouts = [
        ("", ""),
        ("", "recompute layers.*"),
        ("", "microbatches 2"),
        ("a=2", "batch -> a; params: * -> a"),
        ("a=2", "heads, d_ff, vocab -> a; microbatches 2"),
    ];
    are_those_of_the_cpu("gpt", &[&TEXT[..], &[("places", 70)]].concat(), &layouts, dir.path());
}

#[test]
fn bert_as_a_gpu_launches_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "wordpiece", "--vocab", "320", "--task", "masked"]);
    let layouts = [("", ""), ("a=2", "batch -> a; heads -> a when free")];
    are_those_of_the_cpu("bert", &[&TEXT[..], &[("places", 70)]].concat(), &layouts, dir.path());
}

/// Grouped queries, gates and a root mean square.
#[test]
fn llama_as_a_gpu_launches_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &NEXT);
    let mut sizes: Vec<_> = TEXT.into_iter().filter(|(name, _)| *name != "heads").collect();
    sizes.extend([("groups", 1), ("queries", 2)]);
    are_those_of_the_cpu("llama", &sizes, &[("", ""), ("a=2", "batch -> a")], dir.path());
}

/// An encoder and a decoder, which multiply what was encoded by two weights in each layer.
#[test]
fn t5_as_a_gpu_launches_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320", "--sentinels", "16", "--task", "spans"]);
    let sizes = [&TEXT[..], &[("out", 24), ("d_model", 32)]].concat();
    are_those_of_the_cpu("t5", &sizes, &[("", ""), ("a=2", "heads, d_ff -> a")], dir.path());
}

/// Stages, in every order of passes, with what they receive one pass ahead: losses and tensors are those of one device.
#[test]
fn a_pipeline_as_gpus_launch_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &NEXT);
    let sizes = [("batch", 4), ("seq", 16), ("vocab", 320), ("layers", 4), ("heads", 2), ("d_head", 16)];
    let sizes = [&sizes[..], &[("d_ff", 24), ("places", 16)]].concat();
    let trained = |device: DeviceKind, precision: DType, mesh: &str, layout: &str| {
        let o = ProjectOptions {
            preset: Some("tiny".into()),
            precision: Some(precision.into()),
            ..options("gpt", mesh, layout, &sizes)
        };
        let run = format!("{device} {precision} {mesh} {layout}");
        trained_on(&Devices { device, ..Devices::default() }, &o, dir.path(), &run, STEPS)
    };
    let layouts = [
        ("pipe=2", "layers -> pipe; microbatches 4; schedule gpipe"),
        ("pipe=3", "layers -> pipe; microbatches 4; stages 1, 2, 1"),
        ("pipe=3", "layers -> pipe; microbatches 4; schedule zb_h1"),
        ("pipe=2", "layers -> pipe; microbatches 4; chunks 2"),
        ("pipe=2,a=2", "layers -> pipe; heads, d_ff, vocab -> a; microbatches 2; schedule zb_h1"),
    ];
    for (precision, losses, values, layouts) in
        [(DType::F32, 2e-5, 2e-3, &layouts[..]), (DType::BF16, 5e-3, 3e-1, &layouts[2..4])]
    {
        let one = trained(meshwright_cpu::device(), precision, "", "microbatches 4");
        for (mesh, layout) in layouts {
            let name = format!("{layout:?} in {precision}");
            let gpus = trained(meshwright_burn::reference(), precision, mesh, layout);
            let off = one.losses.iter().zip(&gpus.losses).map(|(a, b)| (a - b).abs() / a.abs());
            let off = off.fold(0.0, f64::max);
            assert!(off < losses, "{name}: losses are off by {off:e}: {:?}, {:?}", one.losses, gpus.losses);
            assert_eq!(one.tensors.len(), gpus.tensors.len(), "{name}");
            for path in one.tensors.keys().filter(|path| !path.contains("attention.k.b")) {
                let off = apart(&one.values(path), &gpus.values(path));
                assert!(off < values, "{name}: `{path}` is off by {off:e} of its greatest");
            }
        }
    }
}
