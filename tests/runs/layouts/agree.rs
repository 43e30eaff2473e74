//! A layout changes no result: trainings on many meshes beside one on a single device.

use crate::support::{SMALL, SMALL_DIMS, Sizes, Trained, apart, folder, options, trained};
use meshwright_plan::Arithmetic;
use meshwright_train::ProjectOptions;
use std::path::Path;

/// Mesh and layout.
const MLP: &[(&str, &str, &str)] = &[
    ("dp", "all=4", "batch -> all"),
    ("mp", "all=4", "hidden -> all"),
    ("both", "r=2,c=2", "batch -> r; hidden -> c"),
    ("replicated", "r=2,c=2", ""),
    ("three", "a=3", "batch -> a"),
    ("three-mp", "a=3", "hidden -> a"),
    ("seven", "a=7", "batch -> a"),
    ("seven-mp", "a=7", "hidden, classes -> a when free"),
    ("folded", "pod=2,data=2", "batch -> pod, data"),
    ("folded-uneven", "x=2,y=3", "hidden -> y, x"),
    ("image", "x=3,y=2", "rows -> x; cols -> y"),
    ("more-devices-than-rows", "x=7", "rows -> x"),
    ("zero1", "data=4", "zero1"),
    ("zero2", "data=4", "zero2"),
    ("zero3", "data=4", "zero3"),
    ("zero3-three", "data=3", "zero3"),
    ("three-axes", "x=2,y=2,z=2", "batch -> x; hidden -> y; params: rows -> z"),
];

const MNIST_MLP: &[(&str, &str, &str)] = &[
    ("dp", "all=4", "batch -> all"),
    ("mp", "all=4", "hidden1 -> all"),
    ("both", "r=2,c=2", "batch -> r; hidden1 -> c"),
    ("both-layers", "r=2,c=2", "batch -> r; hidden1 -> c; hidden2 -> c when free"),
    ("replicated", "r=2,c=2", ""),
    ("three", "a=3", "hidden2 -> a"),
    ("seven", "a=7", "batch -> a"),
    ("seven-mp", "a=7", "hidden1 -> a"),
    ("folded", "x=2,y=2", "hidden1 -> x, y"),
    ("zero1", "data=4", "zero1"),
    ("zero2", "data=4", "zero2"),
    ("zero3", "data=4", "zero3"),
];

fn f64_options(model: &str, mesh: &str, layout: &str, dims: &[(&str, usize)]) -> ProjectOptions {
    // The narrow networks learn slowly: a step of theirs is larger, so that a wrong gradient shows.
    let narrow = model == "mnist_mlp" && !dims.is_empty();
    ProjectOptions {
        precision: Some(Arithmetic::F64),
        sets: if narrow { vec![("lr".into(), 0.01)] } else { Vec::new() },
        ..options(model, mesh, layout, dims)
    }
}

/// In f64 only rounding is left: each of 100 losses within 1e-12, parameters and moments at the end within 1e-9.
pub(crate) fn agrees(one: &Trained, other: &Trained, name: &str) {
    agrees_within(one, other, name, [1e-12, 1e-9]);
}

/// Losses within the first of `tolerance`, relative; parameters and moments at the end within the second.
pub(crate) fn agrees_within(one: &Trained, other: &Trained, name: &str, tolerance: [f64; 2]) {
    for (step, (a, b)) in one.losses.iter().zip(&other.losses).enumerate() {
        assert!((a - b).abs() <= tolerance[0] * a.abs(), "{name}: step {}: {a} and {b}", step + 1);
    }
    assert_eq!(one.losses.len(), other.losses.len(), "{name}");
    assert_eq!(one.tensors.keys().collect::<Vec<_>>(), other.tensors.keys().collect::<Vec<_>>(), "{name}");
    for path in one.tensors.keys() {
        assert_eq!(one.tensors[path].shape, other.tensors[path].shape, "{name}: {path}");
        let off = apart(&one.values(path), &other.values(path));
        assert!(off <= tolerance[1], "{name}: {path} is {off:e} apart");
    }
}

fn all_agree(model: &str, dims: &[(&str, usize)], meshes: &[(&str, &str, &str)], at: &Path, steps: u64) {
    let run = |name: &str| format!("{model}-{name}-{steps}");
    let one = trained(&f64_options(model, "", "", dims), at, &run("one"), steps);
    let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
    assert!(
        last < if steps < 100 { first } else { 0.9 * first },
        "the loss does not go down: {first} to {last}"
    );
    for (name, mesh, layout) in meshes {
        let other = trained(&f64_options(model, mesh, layout, dims), at, &run(name), steps);
        agrees(&one, &other, name);
    }
}

fn small(more: &[(&'static str, usize)]) -> Vec<(&'static str, usize)> {
    [SMALL_DIMS, more].concat()
}

#[test]
fn mlp_trains_the_same_on_every_mesh() {
    let dir = folder(SMALL);
    all_agree("mlp", &small(&[("hidden", 11)]), MLP, dir.path(), 100);
}

#[test]
fn mnist_mlp_trains_the_same_on_every_mesh() {
    let dir = folder(SMALL);
    all_agree("mnist_mlp", &small(&[("hidden1", 11), ("hidden2", 9)]), MNIST_MLP, dir.path(), 100);
}

/// A few steps on every mesh, and with `LONG` set as many as the narrow networks train.
#[test]
fn the_full_widths_train_the_same() {
    let dir = folder(Sizes { examples: 1000, test: 10, rows: 28, cols: 28 });
    let steps = if std::env::var_os("LONG").is_some() { 100 } else { 3 };
    all_agree("mlp", &[], MLP, dir.path(), steps);
    all_agree("mnist_mlp", &[], MNIST_MLP, dir.path(), steps);
    if steps < 100 {
        all_agree("mlp", &[], &MLP[2..3], dir.path(), 100);
        all_agree("mnist_mlp", &[], &MNIST_MLP[2..3], dir.path(), 100);
    }
}

#[test]
fn a_rerun_is_bit_identical() {
    let dir = folder(SMALL);
    for (name, mesh, layout) in [MLP[2], MLP[9], MLP[14]] {
        // In f32, where any other order of a sum shows.
        let o = options("mlp", mesh, layout, &small(&[("hidden", 64)]));
        let runs = ["first", "second"].map(|n| trained(&o, dir.path(), &format!("{name}-{n}"), 40));
        assert_eq!(runs[0], runs[1], "{name}");
    }
}
