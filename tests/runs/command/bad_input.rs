//! Bad input is answered in words, with exit code 1 or 2: never with a panic, never with a hang.

use crate::support::{Numbers, SMALL, Said, command, folder, idx, said};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Runs the command; it must end by itself within a minute.
fn bounded(args: &[&str]) -> Said {
    let child =
        command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    let (done, ended) = channel();
    let watched: Vec<String> = args.iter().map(|a| a.to_string()).collect();
    let watch = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            let _ = std::process::Command::new("kill").args(["-9", &id]).status();
            panic!("it hangs: {watched:?}");
        }
    });
    let output = child.wait_with_output().unwrap();
    let _ = done.send(());
    watch.join().unwrap();
    said(output)
}

/// It fails with that code in its message.
fn diagnosed(args: &[&str], code: &str) {
    let said = bounded(args);
    assert_eq!(said.code, Some(1), "{args:?}: {}{}", said.out, said.err);
    assert!(said.err.contains(&format!("error[{code}]")), "{args:?}: {}", said.err);
    assert!(!said.err.contains("panicked") && !said.err.contains("internal error"), "{}", said.err);
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join("data").join(name), bytes).unwrap();
}

#[test]
fn broken_data_is_named() {
    type Change = fn(&Path);
    let n = SMALL.examples;
    assert_eq!((n, SMALL.rows, SMALL.cols), (300, 5, 4));
    let changes: [(&str, &str, Change); 12] = [
        ("truncated", "E0502", |f| {
            let bytes = std::fs::read(f.join("data/train-image")).unwrap();
            write(f, "train-image", &bytes[..bytes.len() - 1]);
        }),
        ("a header alone", "E0502", |f| write(f, "train-image", &idx(&[300, 5, 4], &[])[..9])),
        ("more than the header says", "E0502", |f| write(f, "train-image", &idx(&[300, 5, 4], &[0; 6001]))),
        ("more than any memory", "E0502", |f| {
            write(f, "train-image", &idx(&[1 << 31, 1 << 31, 1 << 31], &[]))
        }),
        ("empty", "E0502", |f| write(f, "train-image", &[])),
        ("not IDX", "E0502", |f| write(f, "train-image", b"PNG, or so it seems")),
        ("no gzip behind its magic", "E0502", |f| {
            write(f, "train-image", &[0x1f, 0x8b, 8, 0, 0, 0, 1, 2, 3])
        }),
        ("gone", "E0502", |f| std::fs::remove_file(f.join("data/train-image")).unwrap()),
        ("a label out of range", "E0506", |f| {
            let mut labels = vec![0; 300];
            labels[217] = 10;
            write(f, "train-label", &idx(&[300], &labels));
        }),
        ("fewer labels", "E0504", |f| write(f, "train-label", &idx(&[299], &[0; 299]))),
        ("other sizes", "E0504", |f| write(f, "train-image", &idx(&[300, 4, 5], &[0; 6000]))),
        ("no list of files", "E0507", |f| write(f, "data.toml", b"[train\nimage = ")),
    ];
    for (what, code, change) in changes {
        let dir = folder(SMALL);
        change(dir.path());
        let data = dir.path().join("data").display().to_string();
        let mut args = vec!["train", "mlp", "--no-save", "--steps", "1", "--data", &data];
        args.extend(["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4"]);
        let said = bounded(&args);
        assert!(said.err.contains(&format!("error[{code}]")), "{what}: {}", said.err);
        diagnosed(&args, code);
        if what == "a label out of range" {
            assert!(said.err.contains("217") && said.err.contains("10"), "{}", said.err);
        }
    }
}

#[test]
fn broken_checkpoints_are_passed_over_or_named() {
    let dir = folder(SMALL);
    let path = |n: &str| dir.path().join(n).display().to_string();
    let (data, run) = (path("data"), path("run"));
    let mut args = vec!["train", "mlp", "--run", &run, "--steps", "50", "--data", &data];
    args.extend(["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=7"]);
    assert_eq!(bounded(&args).code, Some(0));
    // A folder that holds a run is not overwritten.
    diagnosed(&args, "E0510");
    let mut eval = vec!["eval", "mlp", "--checkpoint", &run, "--data", &data];
    eval.extend(["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=7"]);
    assert_eq!(bounded(&eval).code, Some(0));
    // Another width of the model.
    *eval.last_mut().unwrap() = "hidden=8";
    diagnosed(&eval, "E0513");
    *eval.last_mut().unwrap() = "hidden=7";
    // A bit of the newest one flips: the one before is taken. Then that of the other one too.
    let mut files: Vec<_> =
        walk(&dir.path().join("run")).into_iter().filter(|f| f.ends_with(".safetensors")).collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    for (k, file) in files.iter().rev().enumerate() {
        let mut bytes = std::fs::read(file).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(file, bytes).unwrap();
        if k == 0 {
            assert_eq!(bounded(&eval).code, Some(0));
        } else {
            diagnosed(&eval, "E0512");
        }
    }
}

fn walk(folder: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for e in std::fs::read_dir(folder).unwrap() {
        let p = e.unwrap().path();
        if p.is_dir() { out.extend(walk(&p)) } else { out.push(p.display().to_string()) }
    }
    out
}

/// Texts that are almost right, and some that are not at all.
const WORDS: &[&str] = &[
    "train",
    "eval",
    "check",
    "explain",
    "mlp",
    "mnist_mlp",
    "bert",
    "mnist_conv",
    "mlp.mw",
    "E0310",
    "E9999",
    "--layout",
    "--mesh",
    "--dim",
    "--set",
    "--expect-devices",
    "--format",
    "--steps",
    "--emit",
    "--precision",
    "--preset",
    "json",
    "text",
    "plan",
    "graph",
    "after:fuse",
    "f64",
    "bf16",
    "r=2,c=2",
    "r=0",
    "r=",
    "r:2;c:2",
    "r=99999999999999999999",
    "r=2,r=2",
    "=",
    ",,",
    "batch -> r",
    "batch -> r; hidden -> c",
    "batch:r",
    "hidden -> r, c when free",
    "* -> r",
    "params: * -> r",
    "-> ->",
    "(((",
    "batch=0",
    "batch=7",
    "batch=-1",
    "hidden=1",
    "lr=1e999",
    "lr=nan",
    "lr=0.5",
    "1",
    "0",
    "-1",
    "99999999999999999999",
    "",
    "\u{0}",
    "ä -> ö",
    "--help",
    "--",
    "zero3",
    "dp_tp",
    "models/data",
    "/",
    ".",
    "--no-save",
    "--resume",
    "--run",
];

#[test]
fn no_command_line_panics_or_hangs() {
    let mut numbers = Numbers(1);
    let rounds = if std::env::var_os("LONG").is_some() { 5000 } else { 250 };
    for _ in 0..rounds {
        let mut args = vec![["check", "explain", "check", "models", "bench"][numbers.below(5)]];
        for _ in 0..numbers.below(7) {
            let word = WORDS[numbers.below(WORDS.len())];
            // Arguments cannot hold it: the system refuses before the command begins.
            if !word.contains('\u{0}') {
                args.push(word);
            }
        }
        let said = bounded(&args);
        assert!(matches!(said.code, Some(0..=2)), "{args:?}: {:?}: {}", said.code, said.err);
    }
}

#[test]
fn no_model_text_panics_or_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.mw").display().to_string();
    let text = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    let mut numbers = Numbers(2);
    let rounds = if std::env::var_os("LONG").is_some() { 3000 } else { 150 };
    for _ in 0..rounds {
        // Pieces of a good model, with some left out, doubled, or swapped.
        let mut words: Vec<&str> = text.split_inclusive([' ', '(', ')', '[', ']', ',', '\n']).collect();
        for _ in 0..1 + numbers.below(4) {
            let (a, b) = (numbers.below(words.len()), numbers.below(words.len()));
            match numbers.below(3) {
                0 => drop(words.remove(a)),
                1 => words.insert(a, words[b]),
                _ => words.swap(a, b),
            }
        }
        std::fs::write(&file, words.concat()).unwrap();
        let said = bounded(&["check", &file, "--layout", "batch -> r", "--mesh", "r=2"]);
        assert!(matches!(said.code, Some(0 | 1)), "{:?}: {}\n{}", said.code, said.err, words.concat());
    }
}
