//! What the suites of the command share: folders of their own, the command, and a small model with data.

use meshwright_sorted::SortedMap;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

/// A folder of its own for a test, empty at the start. Tests run side by side, so that no two may ask for the same.
pub(crate) fn folder(name: &str) -> PathBuf {
    static TAKEN: Mutex<SortedMap<String, String>> = Mutex::new(SortedMap::new());
    let this = std::thread::current().name().unwrap_or_default().to_string();
    let test = TAKEN.lock().unwrap().entry(name.into()).or_insert(this.clone()).clone();
    assert_eq!(test, this, "both tests ask for the folder {name:?}");
    let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&at);
    std::fs::create_dir_all(&at).unwrap();
    at
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/data");
    c.args(args).env_remove("NO_COLOR").env("MESHWRIGHT_DATA", data.canonicalize().unwrap());
    c
}

/// Exit code, standard output and standard error of a command.
pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    said(command(args).output().unwrap())
}

/// The same in a folder.
pub(crate) fn run_in(at: &Path, args: &[&str]) -> (i32, String, String) {
    said(command(args).current_dir(at).output().unwrap())
}

pub(crate) fn said(output: Output) -> (i32, String, String) {
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// The events of a command in a folder, which must succeed.
pub(crate) fn events(at: &Path, args: &[&str]) -> Vec<Value> {
    let (code, out, err) = run_in(at, &[args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    lines(&out)
}

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

pub(crate) fn file(at: &Path, name: &str) -> String {
    std::fs::read_to_string(at.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Steps and their losses.
pub(crate) fn steps(events: &[Value]) -> Vec<(u64, f64)> {
    let steps = events.iter().filter(|e| e["event"] == "step");
    steps.map(|e| (e["step"].as_u64().unwrap(), e["loss"].as_f64().unwrap())).collect()
}

/// A small model on data of its own, which learns to tell whether the sum of four numbers is positive.
pub(crate) const MODEL: &str = "
dim batch = 10, features = 4, classes = 2
const lr = 0.5
model sums {
    input x[batch, features]: float
    input y[batch]: i32 in classes
    param w[features, classes] = normal(0, 0.1)
    let logits = sum[features](x * w)
    loss l = mean[batch](cross_entropy[classes](logits, y))
    metric max accuracy = mean[batch](argmax[classes](logits) == y)
    output class = argmax[classes](logits)
}
train sums {
    minimize l
    optimizer sgd(lr = lr)
}
";

/// Files of 100 examples to train on and 30 to test on.
pub(crate) fn data(at: &Path) {
    let mut seed = 7u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::fs::create_dir_all(at.join("data")).unwrap();
    for (split, n) in [("train", 100), ("test", 30)] {
        let x: Vec<f32> = (0..n * 4).map(|_| next()).collect();
        let y: Vec<i32> = x.chunks(4).map(|r| i32::from(r.iter().sum::<f32>() > 0.0)).collect();
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let ints = y.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        npy(&at.join(format!("data/{split}_x.npy")), "<f4", &format!("({n}, 4)"), &bytes(&x));
        npy(&at.join(format!("data/{split}_y.npy")), "<i4", &format!("({n},)"), &ints);
    }
    let toml =
        "[train]\nx = \"train_x.npy\"\ny = \"train_y.npy\"\n[test]\nx = \"test_x.npy\"\ny = \"test_y.npy\"\n";
    std::fs::write(at.join("data/data.toml"), toml).unwrap();
}

pub(crate) fn npy(path: &Path, descr: &str, shape: &str, bytes: &[u8]) {
    let mut head = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    head.push_str(&" ".repeat(63 - (head.len() + 10) % 64));
    head.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend_from_slice(&(head.len() as u16).to_le_bytes());
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(bytes);
    std::fs::write(path, out).unwrap();
}

/// A folder with the model and its data.
pub(crate) fn prepared(name: &str) -> PathBuf {
    let at = folder(name);
    std::fs::write(at.join("sums.mw"), MODEL).unwrap();
    data(&at);
    at
}

/// The rows of a sweep, which must succeed.
pub(crate) fn rows(at: &Path, args: &[&str]) -> Vec<Value> {
    let (code, out, err) = run_in(at, &[args, &["--format", "jsonl"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    lines(&out)
}

/// A row without what is another each time: times and memory.
pub(crate) fn lasting(row: &Value) -> Value {
    let changes = |name: &str| {
        name.contains("seconds")
            || name.contains("_ms_")
            || ["speedup", "measured_peak_bytes"].contains(&name)
            || name == "examples_per_second"
    };
    let fields = row.as_object().unwrap().iter().filter(|(name, _)| !changes(name));
    Value::Object(fields.map(|(n, v)| (n.clone(), v.clone())).collect())
}

/// What the linter of shell scripts says of one; nothing where it is not installed.
pub(crate) fn linted(script: &str) -> String {
    use std::io::{ErrorKind, Write};
    let mut linter = Command::new("shellcheck");
    linter
        .args(["--format=gcc", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut linter = match linter.spawn() {
        Err(e) if e.kind() == ErrorKind::NotFound => return String::new(),
        spawned => spawned.unwrap(),
    };
    linter.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    String::from_utf8(linter.wait_with_output().unwrap().stdout).unwrap()
}
