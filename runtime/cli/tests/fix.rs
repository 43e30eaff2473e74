//! `check --fix`: which texts it changes, how, and which never.

use crate::support::folder;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const RIGHT: &str = "\
dim batch = 4
dim hidden = 6, classes = 3

model small {
    input x[batch, hidden]: float
    param w[hidden, classes] = normal(0, 0.1)
    let y = softmax[classes](sum[hidden](sigmoid(x) * w))
    loss out = mean[batch](sum[classes](y))
}
";
const LAYOUT: &str = "mesh rows = 2 // a word\nbatch -> rows\n";

/// A folder with a model and a layout.
struct Place(PathBuf);

impl Place {
    fn new(name: &str, model: &str, layout: &str) -> Place {
        let at = folder(name);
        std::fs::write(at.join("m.mw"), model).unwrap();
        std::fs::write(at.join("l.layout"), layout).unwrap();
        Place(at)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn check(&self, args: &[&str]) -> (i32, String, String) {
        let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        let out = c.arg("check").args(args).current_dir(&self.0).stdin(Stdio::null()).output().unwrap();
        let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
        (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
    }

    /// Nothing but the two files is left behind.
    fn tidy(&self) {
        assert_eq!(std::fs::read_dir(&self.0).unwrap().count(), 2);
    }
}

/// A misspelled dim, function and axis, in two files: all are put right in one go.
#[test]
fn misspelled_names_are_put_right() {
    let wrong = RIGHT
        .replace("sum[hidden]", "sum[hiden]")
        .replace("softmax", "sotfmax")
        .replace("sigmoid", "sigmiod");
    let at = Place::new("fix-names", &wrong, &LAYOUT.replace("-> rows", "-> rwos").replace("batch", "bacth"));
    let (code, out, err) = at.check(&["m.mw", "--layout", "l.layout", "--fix"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for said in [
        "m.mw:7: `hiden` -> `hidden`\n",
        "m.mw:7: `sotfmax` -> `softmax`\n",
        "m.mw:7: `sigmiod` -> `sigmoid`\n",
        "l.layout:2: `rwos` -> `rows`\n",
        "l.layout:2: `bacth` -> `batch`\n",
        "ok: 1 parameter",
    ] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert_eq!((at.text("m.mw").as_str(), at.text("l.layout").as_str()), (RIGHT, LAYOUT));
    at.tidy();
    let (code, out, _) = at.check(&["m.mw", "--layout", "l.layout", "--fix"]);
    assert!(code == 0 && out.starts_with("ok: "), "{out}");
}

/// Where a declaration is misspelled and no use is, the uses are not made to follow it.
#[test]
fn a_misspelled_declaration_is_left_to_the_writer() {
    let wrong = RIGHT.replace("dim hidden = 6", "dim hiddem = 6");
    let at = Place::new("fix-declaration", &wrong, LAYOUT);
    let (code, out, err) = at.check(&["m.mw", "--fix"]);
    assert!(code == 1 && out.is_empty() && err.contains("its fix may not be what was meant"), "{out}{err}");
    assert_eq!(at.text("m.mw"), wrong);
}

#[test]
fn what_is_not_sure_is_left_to_the_writer() {
    // `tahn` may be `tan` or `tanh`, `hidden2` another dim: both are near something, and neither is sure.
    for wrong in [RIGHT.replace("sigmoid", "tahn"), RIGHT.replace("sum[hidden]", "sum[hidden2]")] {
        let at = Place::new("fix-unsure", &wrong, LAYOUT);
        let written = || std::fs::metadata(at.0.join("m.mw")).unwrap().modified().unwrap();
        let before = written();
        let (code, out, err) = at.check(&["m.mw", "--layout", "l.layout", "--fix"]);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("error[E0201]"), "{err}");
        assert_eq!((at.text("m.mw"), written()), (wrong, before));
        at.tidy();
    }
}

#[test]
fn what_can_be_fixed_is_and_the_rest_is_told() {
    let wrong = RIGHT.replace("sum[hidden]", "sum[hiden]").replace("mean[batch]", "mean[nothing]");
    let at = Place::new("fix-some", &wrong, LAYOUT);
    let (code, out, err) = at.check(&["m.mw", "--fix"]);
    assert_eq!((code, out.as_str()), (1, "m.mw:7: `hiden` -> `hidden`\n"));
    assert!(err.contains("nothing") && !err.contains("hiden"), "{err}");
    assert_eq!(at.text("m.mw"), RIGHT.replace("mean[batch]", "mean[nothing]"));
}

#[test]
fn what_is_left_is_told_with_the_reason() {
    let wrong = RIGHT.replace("sum[hidden]", "sum[hidden2]").replace("mean[batch]", "mean[nothing]");
    let at = Place::new("fix-left", &wrong, LAYOUT);
    for dry in ["--fix", "--diff"] {
        let (code, out, err) = at.check(&["m.mw", dry]);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        let unsure = "note: m.mw:7: E0201 is left: its fix may not be what was meant: write `hidden` (`--unsafe-fixes`";
        assert!(
            err.contains(unsure) && err.contains("note: m.mw:8: E0201 is left: no fix is known"),
            "{err}"
        );
    }
    let (_, out, _) = at.check(&["m.mw", "--fix", "--format", "json"]);
    let left: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of: Vec<_> = left.iter().filter_map(|l| l.get("left")).collect();
    assert_eq!(
        (of.len(), of[0]["line"].as_u64(), of[0]["unsafe_fix"].as_bool()),
        (2, Some(7), Some(true)),
        "{out}"
    );
}

#[test]
fn unsafe_fixes_are_applied_where_they_are_asked_for() {
    let wrong = RIGHT.replace("sum[hidden]", "sum[hidden2]");
    let at = Place::new("fix-unsafe", &wrong, LAYOUT);
    assert_eq!(at.check(&["m.mw", "--unsafe-fixes"]).0, 2);
    let (code, out, _) = at.check(&["m.mw", "--diff", "--unsafe-fixes"]);
    assert!(
        code == 1 && out.contains("+    let y = softmax[classes](sum[hidden](") && at.text("m.mw") == wrong,
        "{out}"
    );
    let (code, out, err) = at.check(&["m.mw", "--fix", "--unsafe-fixes"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("m.mw:7: `hidden2` -> `hidden`\n"), "{out}");
    assert_eq!(at.text("m.mw"), RIGHT);
}

/// Spellings of newcomers: each has a fix, or several in turn, after which the model compiles and says what was meant.
#[test]
fn what_a_newcomer_writes_can_be_fixed() {
    let model = |head: &str, body: &str| {
        format!(
            "{head}\nmodel m {{\n    input x[batch, wide]: float\n    param w[wide] = normal(0, 1)\n{body}\n}}\n"
        )
    };
    let head = "dim batch = 4, wide = 3\nconst lr = 0.1";
    let bodies = [
        ("    output y = sum[wide] x", "sum[wide](x)"),
        ("    output y = sum[wide] x * w", "sum[wide](x * w)"),
        ("    output y = sum[wide](relu x * w)", "sum[wide](relu(x) * w)"),
        ("    output y = relu x", "relu(x)"),
        ("    output y = 1 - relu x[wide = 1] / 2", "1 - relu(x[wide = 1]) / 2"),
        ("    output y = relu 2", "relu(2)"),
        ("    output y = x[1]", "x[batch = 1]"),
        ("    output y = x[:, 2]", "x[wide = 2]"),
        ("    output y = x[0, 2]", "x[batch = 0, wide = 2]"),
        ("    output y = x[:]", "output y = x\n"),
        ("    let h: float = relu(x)\n    output y = h", "let h = relu(x)"),
        ("    let h := relu(x)\n    output y = h", "let h = relu(x)"),
        ("    param v[wide]: normal(0, 1)\n    output y = x * v", "param v[wide] = normal(0, 1)"),
        ("    input z[batch] float\n    output y = x * z", "input z[batch]: float"),
    ];
    let heads = [
        ("dim batch: 4, wide = 3", "dim batch = 4, wide = 3"),
        ("dim batch: 4, wide: 3", "dim batch = 4, wide = 3"),
        ("dim batch := 4, wide = 3", "dim batch = 4, wide = 3"),
        ("dim batch 4, wide 3", "dim batch = 4, wide = 3"),
        ("dim batch = 4, wide = 3\nconst lr: 0.1", "const lr = 0.1"),
        ("dim batch = 4, wide = 3\nconst lr: float = 0.1", "const lr = 0.1"),
    ];
    let all = bodies.iter().map(|(body, right)| (model(head, body), right));
    let all = all.chain(heads.iter().map(|(head, right)| (model(head, "    output y = x * w"), right)));
    for (text, right) in all {
        let at = Place::new("fix-newcomer", &text, LAYOUT);
        let (code, out, err) = at.check(&["m.mw"]);
        assert!(code == 1 && err.contains("error[E0101]") && err.contains("help: "), "{text}{out}{err}");
        for _ in 0..2 {
            at.check(&["m.mw", "--fix", "--unsafe-fixes"]);
        }
        let (code, _, err) = at.check(&["m.mw"]);
        assert_eq!(code, 0, "{}{err}", at.text("m.mw"));
        assert!(at.text("m.mw").contains(right), "{}", at.text("m.mw"));
    }
    // Layers, and settings of `train`.
    let layer = "layer twice(v: float) { return 2 * v }\n";
    let text = format!(
        "{}train m {{ minimize: l optimizer = adam(lr: 0.1) }}\n",
        model(head, "    loss l = mean[batch, wide](twice(x) * w)")
    );
    let at = Place::new("fix-newcomer", &text.replacen("model", &format!("{layer}model"), 1), LAYOUT);
    for _ in 0..4 {
        at.check(&["m.mw", "--fix", "--unsafe-fixes"]);
    }
    let (code, _, err) = at.check(&["m.mw"]);
    assert_eq!(code, 0, "{}{err}", at.text("m.mw"));
    // Where it is not known what is meant, it is said how such a thing is written.
    for (body, help) in [
        ("    output y = x w", "as in `x * w`"),
        ("    let h = x * w\n    output y = h[1]", "`h[d = 1]` is position 1 along the dim `d`"),
        ("    output y = sum[1](x)", "`sum[d](x)` is along the dim `d`"),
    ] {
        let at = Place::new("fix-newcomer", &model(head, body), LAYOUT);
        let (code, _, err) = at.check(&["m.mw"]);
        assert!(code == 1 && err.contains("error[E0101]") && err.contains(help), "{body}{err}");
    }
}

#[test]
fn a_diff_writes_nothing() {
    let wrong = RIGHT.replace("sum[hidden]", "sum[hiden]");
    let at = Place::new("fix-diff", &wrong, LAYOUT);
    let (code, out, err) = at.check(&["m.mw", "--diff"]);
    assert!(code == 1 && err.starts_with("note: ") && err.contains("`--fix` in place of `--diff`"), "{err}");
    assert!(out.starts_with("--- m.mw\n+++ m.mw\n@@ "), "{out}");
    let line = |mark: &str| out.lines().filter(|l| l.starts_with(mark)).nth(1).unwrap().to_string();
    assert!(line("-").contains("sum[hiden]") && line("+").contains("sum[hidden]"), "{out}");
    assert_eq!(at.text("m.mw"), wrong);
    at.tidy();
    std::fs::write(at.0.join("m.mw"), RIGHT).unwrap();
    assert_eq!(at.check(&["m.mw", "--diff"]), (0, String::new(), String::new()));
}

/// Rules on the command line are corrected in words; what ships stays as it is.
#[test]
fn only_files_are_written() {
    let at = Place::new("fix-given", RIGHT, LAYOUT);
    let (code, out, err) = at.check(&["m.mw", "--layout", "bacth -> r", "--mesh", "r=2", "--fix"]);
    assert_eq!((code, out.as_str()), (1, "--layout:1: `bacth` -> `batch`\n"));
    assert!(err.contains("--layout 'batch -> r'"), "{err}");
    let (code, out, err) = at.check(&["mlp", "--layout", "bacth:r", "--mesh", "r:2", "--fix"]);
    assert_eq!((code, out.as_str()), (1, "--layout:1: `bacth` -> `batch`\n"));
    assert!(err.contains("--layout 'batch:r'"), "{err}");
    // A shipped layout whose axes the mesh misspells.
    let (code, out, err) = at.check(&["mlp", "--layout", "zero3", "--mesh", "dtaa=2", "--fix"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("error[E0301]"), "{err}");
    at.tidy();
    assert_eq!(at.text("m.mw"), RIGHT);
}

#[test]
fn links_permissions_and_json() {
    let wrong = RIGHT.replace("sum[hidden]", "sum[hiden]");
    let at = Place::new("fix-links", &wrong, LAYOUT);
    let mode = |name: &str, mode: u32| {
        std::fs::set_permissions(at.0.join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    mode("m.mw", 0o640);
    std::os::unix::fs::symlink("m.mw", at.0.join("link.mw")).unwrap();
    let (code, out, err) = at.check(&["link.mw", "--fix", "--format", "json"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let first: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let fixed = &first["fixed"];
    for (key, value) in [("file", "link.mw"), ("before", "hiden"), ("after", "hidden"), ("code", "E0201")] {
        assert_eq!(fixed[key], value);
    }
    assert_eq!((fixed["line"].as_u64(), fixed["column"].as_u64()), (Some(7), Some(34)));
    assert!(at.0.join("link.mw").is_symlink());
    assert_eq!(at.text("m.mw"), RIGHT);
    assert_eq!(std::fs::metadata(at.0.join("m.mw")).unwrap().permissions().mode() & 0o777, 0o640);

    std::fs::write(at.0.join("m.mw"), &wrong).unwrap();
    mode("m.mw", 0o440);
    let (code, _, err) = at.check(&["m.mw", "--fix"]);
    assert!(code == 1 && err.contains("error[E0524]") && err.contains("read-only"), "{err}");
    assert_eq!(at.text("m.mw"), wrong);
}

#[test]
fn a_diff_of_nothing_says_what_is_wrong() {
    let at = Place::new("fix-diff-nothing", &RIGHT.replace("sigmoid(x)", "nothing"), LAYOUT);
    let (code, out, err) = at.check(&["m.mw", "--diff"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(
        err.contains("error[E0201]: nothing is called `nothing` here") && err.contains("1 error"),
        "{err}"
    );
}

#[test]
fn what_comes_through_a_pipe_is_printed_corrected() {
    use std::io::Write;
    let at = Place::new("fix-pipe", "", "");
    let mut child = Command::new(env!("CARGO_BIN_EXE_meshwright"))
        .args(["check", "/dev/stdin", "--fix"])
        .current_dir(&at.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(RIGHT.replace("sigmoid", "sigmiod").as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let (said, err) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert_eq!(said, format!("/dev/stdin:7: `sigmiod` -> `sigmoid`\n{RIGHT}"));
    assert!(err.contains("cannot be replaced"), "{err}");
}
