//! Transformers that ship, with dropout, on meshes that divide nothing: every layout trains them alike.

use crate::agree::agrees_within;
use crate::support::{Trained, options, trained};
use crate::text::tokenized;
use meshwright_core::training_step;
use meshwright_plan::DType;
use meshwright_train::{Project, ProjectOptions};
use std::path::Path;

const STEPS: u64 = 8;

/// Mesh and layout.
const LAYOUTS: &[(&str, &str, &str)] = &[
    ("dp", "data=3", "dp"),
    ("tp", "model=3", "tp"),
    ("sequence", "data=2,model=2", "megatron_sp"),
    ("zero1", "data=4", "zero1"),
    ("zero3", "data=3", "zero3"),
    ("context", "data=2,ctx=3", "batch -> data; seq -> ctx; gather key"),
    ("heads-and-zero3", "data=2,model=2", "batch -> data; heads, d_ff -> model; params: * -> data"),
    ("again", "", "recompute layers.*"),
    ("again-tp", "data=2,model=2", "batch -> data; heads, d_ff, vocab -> model; recompute layers.*"),
];

/// A small model, trained on some chapters under a layout.
fn run(model: &str, (name, mesh, layout): (&str, &str, &str), at: &Path) -> Trained {
    let sizes =
        [("batch", 5), ("seq", 14), ("vocab", 320), ("layers", 3), ("heads", 4), ("d_head", 6), ("d_ff", 20)];
    let o = ProjectOptions { precision: Some(DType::F64), ..options(model, mesh, layout, &sizes) };
    trained(&o, at, name, STEPS)
}

fn all_alike(model: &str, tokens: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), tokens);
    let mut one = run(model, ("one", "", ""), dir.path());
    assert!(one.losses.iter().all(|l| (4.0..8.0).contains(l)), "{:?}", one.losses);
    for layout in LAYOUTS {
        let mut other = run(model, *layout, dir.path());
        // A bias of all keys changes no softmax: its gradient is nothing but rounding, which Adam makes large.
        let null = |path: &String| path.contains("attention.k.b");
        other.tensors.retain(|path, _| !null(path));
        one.tensors.retain(|path, _| !null(path));
        agrees_within(&one, &other, layout.0, [1e-11, 1e-8]);
    }
}

#[test]
fn gpt_is_trained_alike_under_every_layout() {
    all_alike("gpt", &["--train", "bpe", "--vocab", "320"]);
}

#[test]
fn bert_is_trained_alike_under_every_layout() {
    all_alike("bert", &["--train", "wordpiece", "--vocab", "320", "--task", "masked"]);
}

#[test]
fn more_layers_are_no_more_steps() {
    let steps = |layers: usize, layout: &str| {
        let o = options("bert", "", layout, &[("layers", layers)]);
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        project.compile(&step, &loaded.sources).0.unwrap().plan.steps.len()
    };
    // `bert` computes in bf16.
    for layout in
        ["", "megatron_sp", "recompute layers.*", "recompute layers.attention, layers.feed_forward.*"]
    {
        assert_eq!(steps(2, layout), steps(96, layout), "{layout}");
    }
    // What the optimizer gathers is larger, and fills more buckets.
    let (few, many) = (steps(2, "zero3"), steps(96, "zero3"));
    assert!(many < few + 8, "{few} and {many}");
}
