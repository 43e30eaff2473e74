//! Training in TF32: factors of products are rounded, the same on every device.

use super::bf16::{falls, kept_in_full, near, precise, write_block};
use crate::support::{SMALL, SMALL_DIMS, Trained, folder, options, trained, trained_on};
use meshwright_core::training_step;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::LaunchKind;
use meshwright_device::target::Target;
use meshwright_plan::{Arithmetic, DType, KernelFamily, Phase, Prim};
use meshwright_train::{Devices, Project, ProjectOptions};

fn in_tf32(o: ProjectOptions) -> ProjectOptions {
    ProjectOptions { precision: Some(Arithmetic::TF32), ..o }
}

const LAYOUTS: [(&str, &str); 5] = [
    ("data=3", "batch -> data"),
    ("model=2", "heads, ff -> model"),
    ("data=2,model=2", "batch -> data; heads, ff, words -> model"),
    ("data=4", "zero3"),
    ("data=2", "batch -> data; params: * -> data; microbatches 2"),
];

/// Of the first loss, how far losses of 80 steps may be apart that differ by the order of sums alone.
const ORDER: f64 = 2e-3;

#[test]
fn a_transformer_trains_in_tf32_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_block(dir.path());
    let of = |mesh: &str, layout: &str| options(&model, mesh, layout, &[]);
    let wide = trained(&precise(of("", ""), DType::F32), dir.path(), "f32", 80);
    let narrow = trained(&in_tf32(of("", "")), dir.path(), "tf32", 80);
    falls(&narrow, "block");
    kept_in_full(&narrow);
    near(&wide, &narrow, 0.02, "tf32 against f32");
    assert_ne!(wide.losses, narrow.losses, "nothing was rounded");
    for (i, (mesh, layout)) in LAYOUTS.into_iter().enumerate() {
        let split = trained(&in_tf32(of(mesh, layout)), dir.path(), &format!("split-{i}"), 80);
        near(&narrow, &split, ORDER, &format!("block on {mesh}"));
    }
}

/// The launches of a GPU, with a plain kernel for each on the host.
#[test]
fn a_gpu_computes_what_threads_do() {
    let dir = folder(SMALL);
    let o = in_tf32(options("mlp", "", "", &[SMALL_DIMS, &[("hidden", 48)]].concat()));
    let threads = trained(&o, dir.path(), "threads", 30);
    let device = meshwright_burn::reference();
    let gpu: Trained = trained_on(&Devices { device, ..Devices::default() }, &o, dir.path(), "gpu", 30);
    near(&threads, &gpu, 1e-5, "launches of a GPU");
}

/// Every matmul of what ships is one of rounded factors, however they come to the device, and attention rounds those that it
/// makes. What updates parameters multiplies in `f32`.
#[test]
fn every_matmul_of_a_gpu_has_rounded_factors() {
    let ways = [
        ("gpt", "", ""),
        ("gpt", "a=2", "batch -> a; params: * -> a"),
        ("gpt", "a=2", "heads, d_ff, vocab -> a"),
        ("gpt", "a=2", "batch -> a; params: * -> a; microbatches 2; keep params; recompute layers.*"),
        ("gpt", "a=2", "layers -> a; microbatches 2"),
        ("bert", "a=2", "batch -> a; moments: * -> a"),
        ("switch", "a=2", "batch -> a; experts -> a when free"),
        ("mnist_conv", "a=2", "batch -> a"),
    ];
    for (model, mesh, layout) in ways {
        let preset = Some("tiny".to_string()).filter(|_| model != "mnist_conv");
        let loaded = Project::load(&ProjectOptions { preset, ..in_tf32(options(model, mesh, layout, &[])) });
        let project = loaded.project.unwrap_or_else(|| panic!("{model}: {:?}", loaded.diagnostics));
        let step = training_step(&project.program).unwrap();
        let (compiled, found) = project.compile(&step, &loaded.sources);
        let plan = compiled.unwrap_or_else(|| panic!("{model} under `{layout}`: {found:?}")).plan;
        for s in &plan.steps {
            if let Prim::Attention { spec, parts } = &s.prim {
                assert!(spec.rounds, "{model} under `{layout}`: {parts:?} multiplies what is not rounded");
            }
        }
        let device = meshwright_device::compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
        let (mut rounded, mut exact) = (0, vec![]);
        for launch in device.launches.iter() {
            let LaunchKind::Kernel(
                kernel @ (Kernel::Matmul(_) | Kernel::MatmulEpilogue(_) | Kernel::MatmulGroup(_)),
            ) = &launch.kind
            else {
                continue;
            };
            let product = |at: &&usize| plan.steps[**at].prim.spec().family == KernelFamily::Matmul;
            let Some(step) = launch.steps.iter().find(product).map(|at| &plan.steps[*at]) else { continue };
            match kernel.name().ends_with("_tf32") {
                true => rounded += 1,
                false if step.phase == Phase::Update => {}
                false => exact.push(&step.origin[0].path),
            }
        }
        assert!(
            rounded > 0 && exact.is_empty(),
            "{model} under `{layout}`: {rounded} rounded, not {exact:?}"
        );
    }
}
