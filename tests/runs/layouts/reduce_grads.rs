//! `reduce grads in bf16`: half the bytes of the collectives that sum gradients, losses that are near those without it and not
//! the same, and copies of parameters that stay equal.

use crate::precision::bf16::{near, precise, write_block};
use crate::support::{SMALL, SMALL_DIMS, Trained, folder, options, trained};
use meshwright_core::{Compiled, training_step};
use meshwright_exec::{Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider};
use meshwright_plan::{DType, Monoid, Phase};
use meshwright_train::{Project, ProjectOptions};
use std::sync::Arc;

/// Meshes with layouts that reduce gradients: after the backward pass, in its loops, split, in parts.
const LAYOUTS: &[(&str, &str)] = &[
    ("data=4", "batch -> data"),
    ("data=3", "zero2"),
    ("data=3", "zero3"),
    ("data=2,model=2", "batch -> data; grads: * -> model"),
    ("pod=2,data=2", "batch -> pod, data; grads: * -> data"),
    ("data=2", "batch -> data; microbatches 2"),
    ("data=2", "batch -> data; grads: * -> data; microbatches 3"),
];

/// A layout that ships as its rules, with one more line.
fn reduced(layout: &str) -> String {
    let shipped = meshwright_runs::catalog::find(meshwright_runs::catalog::LAYOUTS, layout);
    format!("{}\nreduce grads in bf16", shipped.map_or(layout, |s| s.text))
}

fn compiled(options: &ProjectOptions) -> Compiled {
    let loaded = Project::load(options);
    let project = loaded.project.unwrap_or_else(|| panic!("{options:?}: {:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    let (compiled, found) = project.compile(&step, &loaded.sources);
    assert!(found.is_empty(), "{options:?}: {found:?}");
    compiled.unwrap()
}

/// Bytes of the sums of gradients in a step, and those of all other collectives.
fn bytes(c: &Compiled) -> (u64, u64) {
    let plan = &c.plan;
    let (mut grads, mut others) = (0, 0);
    for (step, times) in plan.steps.iter().zip(plan.times()) {
        let Some(collective) = step.collective() else { continue };
        let sums = collective.spec().monoid == Some(Monoid::Sum) && step.phase == Phase::Backward;
        for (of, bytes) in step.origin.iter().zip(step.collective_bytes(plan)) {
            let gradient = sums && of.path.starts_with("d(");
            *(if gradient { &mut grads } else { &mut others }) += bytes as u64 * times;
        }
    }
    (grads, others)
}

#[test]
fn sums_of_gradients_have_half_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let block = write_block(dir.path());
    for (mesh, layout) in LAYOUTS {
        for (model, dims) in [("mnist_mlp", SMALL_DIMS), (&block, &[][..])] {
            for precision in [DType::F32, DType::BF16, DType::F16] {
                let of = |layout: &str| {
                    let o = precise(options(model, mesh, layout, dims), precision);
                    bytes(&compiled(&o))
                };
                let ((whole, others), (half, same)) = (of(layout), of(&reduced(layout)));
                assert!(whole > 0, "{model} {mesh} {layout}");
                assert_eq!((half * 2, same), (whole, others), "{model} {mesh} {layout} {precision}");
            }
        }
    }
}

#[test]
fn losses_are_near_those_of_sums_in_f32_and_not_the_same() {
    let dir = folder(SMALL);
    let dims = [SMALL_DIMS, &[("hidden1", 48), ("hidden2", 32)]].concat();
    for (k, (mesh, layout)) in LAYOUTS.iter().enumerate() {
        let run = |layout: &str, name: &str| {
            trained(&options("mnist_mlp", mesh, layout, &dims), dir.path(), &format!("{name}-{k}"), 30)
        };
        beside(&run(layout, "f32"), &run(&reduced(layout), "bf16"), &format!("mnist_mlp {mesh} {layout}"));
    }
}

#[test]
fn a_transformer_trains_with_gradients_reduced_in_bf16() {
    let dir = tempfile::tempdir().unwrap();
    let model = write_block(dir.path());
    for precision in [DType::F32, DType::F16] {
        for (mesh, layout) in [("data=4", "batch -> data"), ("data=3", "zero3")] {
            let run = |layout: &str, name: &str| {
                let o = precise(options(&model, mesh, layout, &[]), precision);
                trained(&o, dir.path(), &format!("{name}-{mesh}-{precision}"), 30)
            };
            let name = format!("block {mesh} {precision}");
            beside(&run(layout, "f32"), &run(&reduced(layout), "bf16"), &name);
        }
    }
}

/// The first loss is the same, since nothing was reduced before; the later ones are near each other, and some differ.
fn beside(one: &Trained, other: &Trained, name: &str) {
    assert_eq!(one.losses[0], other.losses[0], "{name}");
    near(one, other, 0.01, name);
    assert_ne!(one.losses, other.losses, "{name}: nothing was rounded");
    for (path, tensor) in &other.tensors {
        assert_eq!(tensor.dtype, DType::F32, "{name}: {path}");
    }
}

#[test]
fn copies_of_parameters_stay_equal() {
    let dir = tempfile::tempdir().unwrap();
    let block = write_block(dir.path());
    for (mesh, layout) in LAYOUTS {
        let differing = copies_after_steps(&options(&block, mesh, &reduced(layout), &[]));
        assert_eq!(differing, Vec::<String>::new(), "{mesh} {layout}");
    }
}

/// The parameters and states of which devices hold different copies after three steps.
fn copies_after_steps(options: &ProjectOptions) -> Vec<String> {
    let plan = compiled(options).plan;
    let dims = plan.dims.clone();
    let mut cluster = Cluster::threads(&plan.mesh, &ClusterOptions::on(meshwright_cpu::device())).unwrap();
    let id = cluster.load(Arc::new(plan)).unwrap();
    cluster.init_state(id, 7).unwrap();
    let provider: Provider = Arc::new(move |_, inputs: &[LocalInput]| {
        let whole = |l: &LocalInput| {
            let shape = dims.shape(&l.dims);
            let values = (0..shape.iter().product()).map(|i: usize| ((i * 7) % 19) as f64).collect();
            HostTensor::new(shape, HostData::from_f64(l.dtype, values)).unwrap()
        };
        Ok(inputs.iter().map(|l| whole(l).slice(&l.ranges).unwrap()).collect())
    });
    for step in 1..=3 {
        cluster.run(id, step, &provider).unwrap();
    }
    let differing = cluster.differing_copies().unwrap();
    cluster.shutdown();
    differing
}
