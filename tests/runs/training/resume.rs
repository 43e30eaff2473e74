//! Runs that are killed and go on: the same bits on the same layout, the same numbers on another.

use crate::layouts::agree::agrees_within;
use crate::support::{Numbers, SMALL, Trained, command, folder, root, run, tensors};
use crate::training::datasets::image_shards;
use crate::training::text::tokenized;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const SIZES: [&str; 8] = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=11"];
/// 300 examples in batches of 12: 25 steps an epoch, with a checkpoint after each.
const STEPS: &str = "160";

fn arguments<'a>(
    data: &'a str,
    run: &'a str,
    mesh: &'a str,
    layout: &'a str,
    precision: &'a str,
) -> Vec<&'a str> {
    let mut args = vec!["train", "mlp", "--data", data, "--run", run, "--mesh", mesh, "--layout", layout];
    args.extend(["--precision", precision, "--steps", STEPS, "--seed", "9", "--format", "json"]);
    args.extend(SIZES);
    args
}

/// Starts a run and kills it, without a word, once it has told of `lines` lines. False where it came to its end before.
fn killed(args: &[&str], lines: usize) -> bool {
    let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..lines {
        if told.next().is_none() {
            break;
        }
    }
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

/// As [`killed`], in a fresh folder each time until a run was killed before its end.
fn surely_killed(args: &[&str], folder: &str, lines: usize) {
    for _ in 0..20 {
        let _ = std::fs::remove_dir_all(folder);
        if killed(args, lines) {
            return;
        }
    }
    panic!("the run always ended before it could be killed");
}

/// The loss of each step as the run's folder has it, as text: every bit counts.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let events = text.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    let steps = events.filter(|e| e["event"] == "step");
    steps.map(|e| (e["step"].as_u64().unwrap(), e["loss"].as_f64().unwrap())).collect()
}

/// Trains to the end; the folder of the run.
fn done(args: &[&str], what: &str) {
    let said = run(args);
    assert_eq!(said.code, Some(0), "{what}: {}", said.err);
}

#[test]
fn a_killed_run_goes_on_as_if_it_had_not_been() {
    let dir = folder(SMALL);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let data = path("data");
    let mut numbers = Numbers(std::process::id().into());
    for (precision, mesh, layout) in [
        ("f32", "r=2,c=2", "batch -> r; hidden -> c"),
        ("f64", "r=2,c=2", "batch -> r; hidden -> c"),
        ("f32", "data=3", "zero3"),
    ] {
        let name = format!("{precision}-{mesh}");
        let whole = path(&format!("{name}-whole"));
        done(&arguments(&data, &whole, mesh, layout, precision), &name);
        let straight = losses(Path::new(&whole));
        assert_eq!(straight.len(), 160);

        // Twice, at a moment that differs from test to test: in an epoch, or while a checkpoint is written.
        let broken = path(&format!("{name}-killed"));
        let mut args = arguments(&data, &broken, mesh, layout, precision);
        let first = 1 + numbers.below(60);
        surely_killed(&args, &broken, first);
        args.push("--resume");
        // The lines of epochs count too, and what was lost is told again.
        let second = 1 + numbers.below(50);
        killed(&args, second);
        done(&args, &name);
        let what = format!("{name}, killed after {first} and {second} lines");
        assert_eq!(losses(Path::new(&broken)), straight, "{what}");
        assert_eq!(tensors(Path::new(&broken)), tensors(Path::new(&whole)), "{what}");

        // From its checkpoint the run goes on on any mesh. In f64 nothing but rounding changes.
        if precision == "f64" {
            for (k, (mesh, layout)) in
                [("all=3", "batch -> all"), ("a=2,b=2", "hidden -> a, b"), ("data=4", "zero3")]
                    .into_iter()
                    .enumerate()
            {
                let moved = path(&format!("moved-{k}"));
                let mut args = arguments(&data, &moved, "r=2,c=2", "batch -> r; hidden -> c", precision);
                surely_killed(&args, &moved, 30 + numbers.below(60));
                args = arguments(&data, &moved, mesh, layout, precision);
                args.push("--resume");
                done(&args, mesh);
                let moved = losses(Path::new(&moved));
                assert_eq!(moved.len(), straight.len(), "{mesh}");
                for ((step, a), (_, b)) in straight.iter().zip(&moved) {
                    assert!((a - b).abs() <= 1e-12 * a.abs(), "{mesh}: step {step}: {a} and {b}");
                }
            }
        }
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_writes_a_checkpoint_and_exits_130() {
    let dir = folder(SMALL);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, run_folder) = (path("data"), path("run"));
    let mut args = arguments(&data, &run_folder, "r=2", "batch -> r", "f32");
    let place = args.iter().position(|a| *a == STEPS).unwrap();
    args[place] = "1000000";
    // Whoever runs the tests may ignore it.
    let mut c = Command::new("env");
    c.args(["--default-signal=INT", env!("CARGO_BIN_EXE_meshwright-under-test")]).args(&args);
    let mut child = c.current_dir(root()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last: Vec<String> = told.by_ref().take(10).map(Result::unwrap).collect();
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    last.extend(told.map_while(Result::ok));
    last.retain(|l| l.contains("\"event\":\"step\""));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let last: serde_json::Value = serde_json::from_str(last.last().unwrap()).unwrap();
    let stopped = last["step"].as_u64().unwrap();
    // The checkpoint is of the step at which it stopped: nothing is lost.
    let steps = (stopped + 3).to_string();
    args[place] = &steps;
    args.push("--resume");
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    // An epoch whose evaluation was stopped is told before its first step.
    let first = said.out.lines().find(|l| l.contains("\"event\":\"step\"")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    assert_eq!(first["step"].as_u64().unwrap(), stopped + 1);
}

/// A small GPT in f64, which draws what it drops; its layers are to be given.
const GPT: [&str; 18] = [
    "train",
    "gpt",
    "--preset",
    "tiny",
    "--precision",
    "f64",
    "--dim",
    "batch=6",
    "--dim",
    "seq=14",
    "--dim",
    "vocab=320",
    "--dim",
    "heads=4",
    "--dim",
    "d_head=3",
    "--dim",
    "d_ff=10",
];

/// Trains that GPT of so many layers up to a step, on some data in a run's folder: all losses so far, and what the run has saved.
fn trained_text((data, run): (&str, &str), layers: &str, steps: &str, more: &[&str]) -> Trained {
    let own = ["--dim", layers, "--data", data, "--run", run, "--no-eval", "--steps", steps, "--seed", "5"];
    done(&[&GPT[..], &own, more].concat(), run);
    let losses = losses(Path::new(run)).into_iter().map(|l| l.1).collect();
    let mut tensors = tensors(Path::new(run));
    // A bias of all keys changes no softmax: its gradient is nothing but rounding, which Adam makes large.
    tensors.retain(|path, _| !path.contains("attention.k.b"));
    Trained { losses, gradient_norm: None, tensors }
}

/// A copy of a run's folder.
fn copied(from: &str, to: &str) {
    assert!(Command::new("cp").args(["-r", from, to]).status().unwrap().success());
}

/// What is dropped depends on the step and the example alone: a run goes on under any layout, in parts of its batch, or with what
/// is computed again, as it would have gone on.
#[test]
fn a_transformer_that_stops_goes_on_alike_under_other_layouts() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let data = path("data");
    let trained = |name: &str, steps: &str, more: &[&str]| {
        let at = path(name);
        trained_text((&data, &at), "layers=2", steps, more)
    };
    let whole = trained("whole", "6", &[]);
    assert_eq!(whole.losses.len(), 6);
    // Without what it drops it would be another run: the dropout counts.
    let dry = trained("dry", "6", &["--set", "rate=0"]);
    assert!((dry.losses[5] - whole.losses[5]).abs() > 1e-4, "{:?} {:?}", dry.losses, whole.losses);
    let first = trained("first", "3", &[]);
    assert_eq!(first.losses, whole.losses[..3]);
    for (i, (mesh, layout)) in [
        ("data=2,model=2", "megatron_sp"),
        ("data=3", "zero3"),
        ("data=1", "microbatches 2"),
        ("pipe=2", "layers -> pipe; microbatches 2; schedule zb_h1"),
        ("pipe=2", "layers -> pipe; microbatches 3; chunks 2; stages 1, 0, 0, 1"),
        ("data=2,pipe=2", "batch -> data; layers -> pipe; microbatches 3; params: * -> data"),
        ("data=1", "recompute layers.*"),
        ("data=3", "batch -> data; params: * -> data; microbatches 2; recompute layers.*"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("other-{i}");
        copied(&path("first"), &path(&name));
        let rest = trained(&name, "6", &["--mesh", mesh, "--layout", layout, "--resume"]);
        agrees_within(&whole, &rest, layout, [1e-11, 1e-8]);
    }
    // What stages have saved goes on elsewhere, in chunks, and in one piece.
    let staged =
        ["--mesh", "pipe=2", "--layout", "layers -> pipe; microbatches 2; chunks 2; stages 0, 1, 1, 0"];
    trained("staged", "3", &staged);
    for (i, (mesh, layout)) in [
        ("data=3", "zero3"),
        ("pipe=2", "layers -> pipe; microbatches 6; schedule gpipe"),
        ("data=1", "batch -> -"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("after-{i}");
        copied(&path("staged"), &path(&name));
        let rest = trained(&name, "6", &["--mesh", mesh, "--layout", layout, "--resume"]);
        agrees_within(&whole, &rest, layout, [1e-11, 1e-8]);
    }
    // Alike on its own layout, to the bit.
    assert_eq!(trained("first", "6", &["--resume"]), whole);
}

/// One run goes on in more stages and in fewer, in chunks, in stages of other lengths, without stages and in stages again: each
/// part of it from what the one before has saved. Where the stages stay, every bit does.
#[test]
fn stages_that_stop_go_on_in_other_stages() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let data = path("data");
    let trained = |name: &str, steps: usize, more: &[&str]| {
        trained_text((&data, &path(name)), "layers=6", &steps.to_string(), more)
    };
    let parts = [
        ("pipe=2", "layers -> pipe; microbatches 3"),
        ("pipe=4", "layers -> pipe; microbatches 6; stages 2, 1, 1, 2"),
        ("pipe=2", "layers -> pipe; microbatches 3; chunks 2"),
        ("data=2", "batch -> data; params: * -> data"),
        ("pipe=3", "layers -> pipe; microbatches 2; stages 1, 0, 5; schedule zb_h1"),
        ("data=2,pipe=2", "batch -> data; layers -> pipe; microbatches 3; chunks 3; moments: * -> data"),
        ("data=3", "zero3"),
    ];
    let mut last = None;
    for (at, (mesh, layout)) in parts.into_iter().enumerate() {
        let on = ["--mesh", mesh, "--layout", layout, "--resume"];
        // Nothing is there for the first part to go on from.
        let first = &on[..if at == 0 { 4 } else { 5 }];
        if at > 0 {
            copied(&path("moved"), &path("straight"));
        }
        let straight = trained("straight", 2 * at + 2, first);
        trained("moved", 2 * at + 1, first);
        let moved = trained("moved", 2 * at + 2, &on);
        assert_eq!(moved, straight, "{layout}");
        std::fs::remove_dir_all(path("straight")).unwrap();
        last = Some(moved);
    }
    let whole = trained("whole", 2 * parts.len(), &[]);
    agrees_within(&whole, &last.unwrap(), "moved", [1e-11, 1e-8]);
}

#[test]
fn a_transformer_that_is_killed_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &["--train", "bpe", "--vocab", "320"]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let data = path("data");
    let of = |run: &str, (mesh, layout): (&str, &str)| -> Vec<String> {
        let more = ["--dim", "layers=2", "--data", &data, "--run", run, "--no-eval", "--steps", "40"];
        let last = ["--seed", "5", "--checkpoint-every", "1", "--mesh", mesh, "--layout", layout];
        let all = [&GPT[..], &more, &last, &["--format", "json"]].concat();
        all.into_iter().map(String::from).collect()
    };
    for (i, on) in [
        ("data=2,model=2", "batch -> data; heads, d_ff, vocab -> model; recompute layers.*; microbatches 2"),
        ("pipe=2", "layers -> pipe; microbatches 3; schedule zb_h1"),
        ("pipe=2", "layers -> pipe; microbatches 2; chunks 2; stages 1, 0, 0, 1"),
    ]
    .into_iter()
    .enumerate()
    {
        let (whole, broken) = (path(&format!("whole-{i}")), path(&format!("killed-{i}")));
        let args = of(&whole, on);
        done(&args.iter().map(String::as_str).collect::<Vec<_>>(), "whole");
        let args = of(&broken, on);
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        surely_killed(&args, &broken, 1 + Numbers(std::process::id().into()).below(20));
        let moved = path(&format!("moved-{i}"));
        copied(&broken, &moved);
        args.push("--resume");
        done(&args, "killed");
        assert_eq!(losses(Path::new(&broken)), losses(Path::new(&whole)), "{on:?}");
        assert_eq!(tensors(Path::new(&broken)), tensors(Path::new(&whole)), "{on:?}");
        // In other stages, or without any, nothing but rounding changes.
        let elsewhere = ["data=3", "pipe=2", "data=2"][i];
        let layout = ["zero3", "layers -> pipe; microbatches 2; chunks 2; stages 0, 1, 1, 0", "zero3"][i];
        let of = |run: &str, more: &[&str]| trained_text((&data, run), "layers=2", "40", more);
        let rest = of(&moved, &["--mesh", elsewhere, "--layout", layout, "--resume"]);
        agrees_within(&of(&whole, &["--resume"]), &rest, layout, [1e-11, 1e-8]);
    }
}

/// As the command takes them.
fn words(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Images are decoded by several threads, ahead of the steps that train on them, and come through a shuffle buffer: what a killed
/// run had read and not yet trained on is read again, in the same order, with the same elements dropped.
#[test]
fn a_killed_run_on_encoded_shards_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let data = path("data");
    image_shards(Path::new(&data));
    let sizes =
        ["batch=6", "down=3", "across=3", "ph=4", "pw=3", "layers=2", "heads=2", "d_head=4", "d_ff=10"];
    let of = |run: &str, rate: &str| -> Vec<String> {
        let mut args = vec!["train", "vit", "--preset", "tiny", "--data", &data, "--run", run, "--no-eval"];
        args.extend(["--mesh", "data=3", "--layout", "dp", "--steps", "60", "--seed", "4", "--set", rate]);
        args.extend(["--checkpoint-every", "1", "--format", "json"]);
        sizes.iter().for_each(|s| args.extend(["--dim", s]));
        args.into_iter().map(String::from).collect()
    };
    let (whole, broken, dry) = (path("whole"), path("killed"), path("dry"));
    done(&words(&of(&whole, "rate=0.2")), "whole");
    let straight = losses(Path::new(&whole));
    // 87 images in batches of 6: more than four epochs.
    assert_eq!(straight.len(), 60);
    done(&words(&of(&dry, "rate=0")), "dry");
    assert_ne!(losses(Path::new(&dry)), straight, "nothing is dropped");
    let mut args = of(&broken, "rate=0.2");
    let mut numbers = Numbers(std::process::id().into());
    let first = 1 + numbers.below(30);
    surely_killed(&words(&args), &broken, first);
    args.push("--resume".into());
    let second = 1 + numbers.below(20);
    killed(&words(&args), second);
    done(&words(&args), "killed");
    let what = format!("killed after {first} and {second} lines");
    assert_eq!(losses(Path::new(&broken)), straight, "{what}");
    assert_eq!(tensors(Path::new(&broken)), tensors(Path::new(&whole)), "{what}");
}
