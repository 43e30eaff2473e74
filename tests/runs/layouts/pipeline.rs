//! Stages of a pipeline: any order of microbatches gives the same bits.

use crate::layouts::agree::agrees_within;
use crate::support::{Trained, options, trained};
use crate::training::text::tokenized;
use meshwright_plan::DType;
use meshwright_train::ProjectOptions;
use std::path::Path;

const SIZES: [(&str, usize); 8] = [
    ("batch", 6),
    ("seq", 10),
    ("vocab", 320),
    ("layers", 6),
    ("heads", 2),
    ("d_head", 4),
    ("d_ff", 8),
    ("places", 16),
];

/// Four steps, with dropout and clipping.
fn steps(at: &Path, precision: DType, mesh: &str, layout: &str) -> Trained {
    std::fs::remove_dir_all(at.join("run")).ok();
    let o = options("gpt", mesh, layout, &SIZES);
    let o = ProjectOptions { preset: Some("tiny".into()), precision: Some(precision), ..o };
    trained(&o, at, "run", 4)
}

/// Stages of 4 and 2 layers, and of 3, 2 and 1.
#[test]
fn the_order_of_microbatches_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    for (stages, lengths) in [("pipe=2", "4, 2"), ("pipe=3", "3, 2, 1")] {
        for parts in [1, 2, 6] {
            let layout = |schedule: &str| {
                format!("layers -> pipe; stages {lengths}; microbatches {parts}; schedule {schedule}")
            };
            let [all, turns, filled] =
                ["gpipe", "1f1b", "zb_h1"].map(|s| steps(dir.path(), DType::F32, stages, &layout(s)));
            assert_eq!(all, turns, "{stages}, {parts} microbatches");
            assert_eq!(all, filled, "{stages}, {parts} microbatches");
        }
    }
}

/// Stages of a device that are not next to each other, of even and uneven lengths, some empty: any order gives the same bits, and what one device
/// gives.
#[test]
fn chunks_train_as_one_device_does() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    // A bias of all keys changes no softmax: its gradient is nothing but rounding, which Adam makes large.
    let counts = |mut of: Trained| {
        of.tensors.retain(|path, _| !path.contains("attention.k.b"));
        of
    };
    for (mesh, lines) in [
        ("pipe=2", "microbatches 3; chunks 2"),
        ("pipe=2", "microbatches 1; chunks 2"),
        ("pipe=2", "microbatches 6; chunks 2; stages 0, 2, 4, 0"),
        ("pipe=3", "microbatches 6; chunks 2; stages 1, 1, 0, 1, 2, 1"),
    ] {
        let train = |precision, mesh: &str, lines: &str| counts(steps(dir.path(), precision, mesh, lines));
        let lines = &format!("{lines}; layers -> pipe");
        let [turns, filled] =
            ["1f1b", "zb_h1"].map(|s| train(DType::F32, mesh, &format!("{lines}; schedule {s}")));
        assert_eq!(turns, filled, "{mesh}, {lines}");
        let parts = lines.split(';').next().unwrap();
        let [one, chunks] = [("", parts), (mesh, lines)].map(|(mesh, lines)| train(DType::F64, mesh, lines));
        agrees_within(&one, &chunks, lines, [1e-11, 1e-8]);
    }
}
