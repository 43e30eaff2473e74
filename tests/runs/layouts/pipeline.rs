//! Stages of a pipeline: any order of microbatches gives the same bits, and what is evaluated and predicted in stages is what one
//! device gives.

use crate::layouts::agree::agrees_within;
use crate::support::{Trained, options, run, trained};
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
    let o = ProjectOptions { preset: Some("tiny".into()), precision: Some(precision.into()), ..o };
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

/// Stages of a device that are not next to each other, of even and uneven lengths, some empty: any order gives the same bits, and
/// what one device gives.
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

/// With several stages a device has other layers, but the norm by which gradients are clipped adds these in the same order.
#[test]
fn chunks_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    for (mesh, all) in [
        ("pipe=2", &["chunks 2", "chunks 3; schedule zb_h1", "chunks 2; stages 1, 3, 0, 2"][..]),
        ("pipe=3", &["chunks 2", "schedule zb_h1; chunks 2"][..]),
        ("data=2,pipe=2", &["chunks 2; batch -> data; params: * -> data"][..]),
    ] {
        for chunks in all {
            let of = |lines: &str| {
                let layout = format!("layers -> pipe; microbatches 3; {lines}");
                steps(dir.path(), DType::F32, mesh, &layout)
            };
            // The same rules for other axes.
            let rules: Vec<&str> = chunks.split("; ").filter(|line| line.contains("data")).collect();
            let one = of(&[&["schedule gpipe"], &rules[..]].concat().join("; "));
            assert!(one.gradient_norm.is_some_and(|norm| norm > 1.0), "nothing is clipped");
            assert_eq!(one, of(chunks), "{mesh}, {chunks}");
        }
    }
}

/// The sizes of a small model of text; the heads of `llama` are in groups.
fn sizes(model: &str) -> Vec<String> {
    let named = |(name, size): &(&str, usize)| match (*name, model) {
        ("heads", "llama") => format!("groups={size}"),
        _ => format!("{name}={size}"),
    };
    let has = |(name, _): &&(&str, usize)| *name != "places" || model == "gpt";
    SIZES.iter().filter(has).flat_map(|size| ["--dim".into(), named(size)]).collect()
}

/// Arguments of a small model of text with six layers in `f64`, on the data and the run below a folder.
fn arguments(verb: &str, model: &str, at: &Path, more: &[&str]) -> Vec<String> {
    let path = |name: &str| at.join(name).display().to_string();
    let mut args: Vec<String> =
        [verb, model, "--preset", "tiny", "--data", &path("data")].map(Into::into).to_vec();
    args.extend([if verb == "train" { "--run" } else { "--checkpoint" }.into(), path(model)]);
    args.extend(sizes(model));
    let last = ["--precision", "f64", "--format", "json", "--cores", "1"];
    args.extend(last.iter().chain(more).map(|s| String::from(*s)));
    args
}

/// What a command prints, line by line.
fn said(args: &[String]) -> Vec<serde_json::Value> {
    let said = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.err);
    said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// The parts of a batch go through the stages behind each other where a whole data set is evaluated, in parts and stages of any
/// numbers.
#[test]
fn evaluations_in_stages_are_those_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    for model in ["gpt", "llama", "switch"] {
        let of = |verb: &str, more: &[&str]| arguments(verb, model, dir.path(), more);
        said(&of("train", &["--steps", "2", "--no-eval"]));
        let (one, guesses) = (said(&of("eval", &[])), said(&of("predict", &[])));
        let numbers = |all: &[serde_json::Value]| -> Vec<(String, f64)> {
            let found = all[0].as_object().unwrap().iter().filter(|(name, _)| name.starts_with("eval_"));
            found
                .filter(|(name, _)| *name != "eval_seconds")
                .map(|(n, v)| (n.clone(), v.as_f64().unwrap()))
                .collect()
        };
        assert!(numbers(&one).len() > 2, "{one:?}");
        for (mesh, layout, sends) in [
            ("pipe=2", "layers -> pipe; microbatches 3", Some([3, 0])),
            ("pipe=3", "layers -> pipe; microbatches 6; stages 1, 0, 5; schedule gpipe", None),
            ("pipe=2", "layers -> pipe; microbatches 6; chunks 2", Some([12, 6])),
            (
                "data=2,pipe=2",
                "batch -> data; layers -> pipe; microbatches 2; schedule zb_h1; params: * -> data",
                Some([2, 0]),
            ),
            ("pipe=2,model=2", "layers -> pipe; heads, d_ff, vocab -> model; microbatches 4", Some([3, 0])),
            ("pipe=2", "layers -> pipe", None),
        ] {
            // What all stages have alike may not be summed over microbatches in chunks.
            if model == "switch" && layout.contains("chunks") {
                continue;
            }
            let layout = &if model == "llama" { layout.replace("heads", "groups") } else { layout.into() };
            let more = ["--mesh", mesh, "--layout", layout];
            let staged = said(&of("eval", &more));
            for ((name, a), (same, b)) in numbers(&one).iter().zip(numbers(&staged)) {
                assert!(
                    *name == same && (a - b).abs() <= 1e-12 * a.abs(),
                    "{model}, {layout}: {name}: {a} and {b}"
                );
            }
            assert_eq!(numbers(&one).len(), numbers(&staged).len());
            // The first two lines say how long it took.
            let told = |all: &[serde_json::Value]| {
                all.iter().filter(|l| l.get("guess").is_some()).cloned().collect::<Vec<_>>()
            };
            assert_eq!(told(&said(&of("predict", &more))), told(&guesses), "{model}, {layout}");
            assert!(told(&guesses).len() > 10, "{guesses:?}");
            let Some(sends) = sends else { continue };
            let mut explain: Vec<String> =
                ["explain", model, "--preset", "tiny", "--program", "eval", "--format", "json"]
                    .map(Into::into)
                    .to_vec();
            explain.extend(sizes(model));
            explain.extend(more.map(String::from));
            let pipeline = said(&explain).remove(0)["pipeline"].clone();
            let found: Vec<u64> =
                pipeline["stages"].as_array().unwrap().iter().map(|s| s["sends"].as_u64().unwrap()).collect();
            assert_eq!(found, sends, "{model}, {layout}");
            assert_eq!(pipeline["stages"][0]["in_flight"], 1, "{pipeline}");
        }
    }
}
