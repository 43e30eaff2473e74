//! Stages of a pipeline: any order of microbatches gives the same bits.

use crate::support::{Trained, options, trained};
use crate::training::text::tokenized;
use meshwright_plan::DType;
use meshwright_train::ProjectOptions;
use std::path::Path;

const SIZES: [(&str, usize); 8] = [
    ("batch", 6),
    ("seq", 10),
    ("vocab", 320),
    ("layers", 5),
    ("heads", 2),
    ("d_head", 4),
    ("d_ff", 8),
    ("places", 16),
];

fn steps(at: &Path, mesh: &str, layout: &str) -> Trained {
    let o = options("gpt", mesh, layout, &SIZES);
    let o = ProjectOptions { preset: Some("tiny".into()), precision: Some(DType::F32), ..o };
    trained(&o, at, "run", 4)
}

/// With dropout and clipping; stages of 3 and 2 layers, and of 2, 2 and 1.
#[test]
fn the_order_of_microbatches_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    for stages in ["pipe=2", "pipe=3"] {
        for parts in [1, 2, 6] {
            let layout =
                |schedule: &str| format!("layers -> pipe; microbatches {parts}; schedule {schedule}");
            let [all, turns, filled] = ["gpipe", "1f1b", "zb_h1"].map(|s| {
                std::fs::remove_dir_all(dir.path().join("run")).ok();
                steps(dir.path(), stages, &layout(s))
            });
            assert_eq!(all, turns, "{stages}, {parts} microbatches");
            assert_eq!(all, filled, "{stages}, {parts} microbatches");
        }
    }
}
