//! Losses that are infinite or not numbers: the first value that is not finite is named, with its place and its operands, under
//! every layout and from every checkpoint.

use crate::support::folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ten examples a batch of numbers from 1 on; the model says what becomes of them.
pub(crate) fn prepared(name: &str, body: &str, train: &str) -> PathBuf {
    let at = folder(name);
    let data: Vec<u8> = (0..200).flat_map(|i| (1.0 + (i % 7) as f32).to_le_bytes()).collect();
    let header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (50, 4), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header);
    bytes.extend(data);
    std::fs::write(at.join("x.npy"), bytes).unwrap();
    let model = format!(
        "dim batch = 10, n = 4, m = 3\nmodel bad {{\n    input x[batch, n]: float\n    param w[n, m] = 1\n{body}}}\ntrain bad {{\n    minimize l\n{train}}}\n"
    );
    std::fs::write(at.join("bad.mw"), model).unwrap();
    at
}

pub(crate) fn train(at: &Path, more: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
    // A given peak is not measured: that takes longer than all else of so small a run.
    c.args(["train", "bad.mw", "--data", "x=x.npy", "--no-eval", "--peak-flops", "1e13"])
        .args(more)
        .current_dir(at);
    c
}

fn trained(at: &Path, more: &[&str]) -> Option<i32> {
    train(at, more).output().unwrap().status.code()
}

pub(crate) fn failed(at: &Path, more: &[&str]) -> String {
    let output = train(at, more).env("NO_COLOR", "1").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{more:?}: {err}");
    err
}

pub(crate) const LAYOUTS: [&[&str]; 4] = [
    &["--no-save"],
    &["--no-save", "--layout", "batch -> a", "--mesh", "a=4"],
    &["--no-save", "--layout", "n -> a; m -> b", "--mesh", "a=2,b=2"],
    &["--no-save", "--layout", "batch -> a; w: n -> a when free", "--mesh", "a=3"],
];

#[test]
fn the_first_value_is_named_under_every_layout() {
    // Weights fall by 1 at each step: in the third one, the second value of `h` is 0 or less.
    let body = "    let h = sum[n](x * w)
    let low = log(h)
    let y = low * 0
    loss l = mean[batch](sum[m](y)) + sum[n, m](w)
";
    let at = prepared("nan-layouts", body, "    optimizer sgd(lr = 0.5)\n");
    for layout in LAYOUTS {
        let err = failed(&at, &[layout, &["--steps", "5"]].concat());
        for part in [
            "error[E0517]: the loss `l` is",
            "at step 3: the first value that is not finite is `low` (line 6)",
            "its operands were finite: `h`",
            "not finite from here on",
            "at step 3: steps 1 to 3 run again, the last two with checks",
        ] {
            assert!(err.contains(part), "{layout:?}: `{part}` is not in\n{err}");
        }
    }
}

#[test]
fn a_value_in_a_loop_is_named() {
    // What the loop has stacked for its gradient is not a false alarm in the iterations before.
    let body = "    let z = sum[n](x * mean[m](w))
    let s = 0
    repeat m as i {
        z = z * (1 + 0 * cast(i, float))
        let low = log(z)
        s = s + tanh(low * 0)
    }
    loss l = mean[batch](s) + sum[n, m](w)
";
    let at = prepared("nan-loop", body, "    optimizer sgd(lr = 0.5)\n");
    for layout in [LAYOUTS[0], LAYOUTS[1], &["--no-save", "--layout", "n -> a", "--mesh", "a=2"]] {
        let err = failed(&at, &[layout, &["--steps", "5"]].concat());
        for part in
            ["the first value that is not finite is `m.low` (line 9)", "its operands were finite: `m.z`"]
        {
            assert!(err.contains(part), "{layout:?}: `{part}` is not in\n{err}");
        }
    }
}

#[test]
fn what_an_update_made_is_found_in_the_step_before() {
    // The gradient of the square root at 0 is infinite; that loss is finite.
    let body = "    let h = sum[n](x * w) - sum[n](x)
    let root = sqrt(h)
    loss l = mean[batch](sum[m](root))
";
    let at = prepared("nan-update", body, "    optimizer sgd(lr = 0.5)\n");
    for layout in LAYOUTS {
        let err = failed(&at, &[layout, &["--steps", "5"]].concat());
        assert!(err.contains("at step 2: the first value that is not finite is `"), "{layout:?}\n{err}");
        assert!(err.contains("that was in step 1, before the loss showed it"), "{layout:?}\n{err}");
        assert!(err.contains("(line 6)") && err.contains("its operands were finite"), "{layout:?}\n{err}");
    }
}

#[test]
fn a_mask_is_nobodys_fault() {
    let body = "    let h = sum[n](x * w)
    let masked = h + log(cast(h > 0, float))
    let weight = softmax[m](masked)
    loss l = mean[batch](sum[m](weight * h)) + 0 * sum[n, m](w ** 2) + sum[n, m](w)
";
    let at = prepared("nan-mask", body, "    optimizer sgd(lr = 0.5)\n");
    // All of a row is masked in the third step: what is left of it is not a number.
    let err = failed(&at, &["--no-save", "--steps", "9"]);
    assert!(err.contains("the first value that is not finite is `masked` (line 6)"), "{err}");
    assert!(err.contains("the first that is not a number is `weight` (line 7)"), "{err}");
}

#[test]
fn steps_are_run_again_from_the_newest_checkpoint() {
    let body = "    let low = log(sum[n](x * w))
    loss l = mean[batch](sum[m](low * 0)) + sum[n, m](w)
";
    let at = prepared("nan-saved", body, "    optimizer sgd(lr = 0.08)\n");
    let err = failed(&at, &["--run", "a", "--checkpoint-every", "4", "--steps", "20"]);
    assert!(err.contains("at step 14: steps 13 to 14 run again, the last two with checks"), "{err}");
    assert!(err.contains("at step 14: the first value that is not finite is `low` (line 5)"), "{err}");
    // A run that goes on comes to the same.
    let again = failed(&at, &["--run", "a", "--resume", "--steps", "20"]);
    assert!(again.contains("steps 13 to 14 run again"), "{again}");
    assert!(again.contains("at step 14: the first value that is not finite is `low` (line 5)"), "{again}");
}

#[test]
fn an_evaluation_that_is_not_finite_fails() {
    let body = "    let h = sum[n](x * w)
    loss l = mean[batch](where(training, 0, log(0 * sum[m](h)))) + sum[n, m](w)
";
    let at = prepared("nan-evaluation", body, "    optimizer sgd(lr = 0.1)\n");
    let run = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_meshwright")).args(args).current_dir(&at).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let data = "x=x.npy,test.x=x.npy";
    let (code, err) = run(&["train", "bad.mw", "--data", data, "--run", "a", "--epochs", "1"]);
    assert!(
        code == Some(1) && err.contains("E0517") && err.contains("on the test set after step 5"),
        "{err}"
    );
    let (code, err) = run(&["eval", "a"]);
    assert!(code == Some(1) && err.contains("E0517") && err.contains("on the test set"), "{err}");
}

#[test]
fn leave_for_what_is_not_finite_is_kept_with_the_run() {
    let body = "    loss l = mean[batch](sum[n](where(x < 1e9, x, 0))) + sum[n, m](w ** 2)\n";
    let at = prepared("nan-leave", body, "    optimizer sgd(lr = 0.1)\n");
    let mut bytes = std::fs::read(at.join("x.npy")).unwrap();
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(at.join("x.npy"), bytes).unwrap();
    assert!(failed(&at, &["--run", "a", "--steps", "2"]).contains("E0506"));
    let run = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_meshwright")).args(args).current_dir(&at).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let first = [
        "train",
        "bad.mw",
        "--data",
        "x=x.npy",
        "--no-eval",
        "--run",
        "b",
        "--steps",
        "2",
        "--allow-nonfinite",
    ];
    assert_eq!(run(&first).0, Some(0));
    assert_eq!(run(&["train", "--run", "b", "--resume", "--steps", "9"]).0, Some(0));
}

/// Of an operand that is cheap, which is computed again for the backward pass, and of one that another statement has made, in a
/// loop too.
#[test]
fn an_infinite_derivative_of_any_operand_is_named() {
    let root =
        "the derivative of `sqrt` at 0 is infinite: keep away from 0 by a small number, `sqrt(… + 1e-12)`";
    let power = "the derivative of `**` at 0 is infinite";
    let y = |e: &str| format!("    let y = {e}\n");
    let mut cases: Vec<(String, &str)> = [
        ("sqrt(relu(z * w))", root),
        ("sqrt((z * w) ** 2)", root),
        ("sqrt(abs(z * w))", root),
        ("sqrt(max(z * w, 0))", root),
        ("sqrt(exp(abs(z * w)) - 1)", root),
        ("abs(z * w) ** 0.5", power),
        ("abs(z * w) ** 0.3", power),
        ("sqrt(abs(z * w)) + log(abs(w) + 1) + 1 / (2 + tanh(w))", root),
    ]
    .map(|(e, what)| (y(e), what))
    .into();
    cases.push(("    let u = relu(z * w)\n    let y = sqrt(u)\n".into(), root));
    let looped =
        "    let y = z * w\n    repeat k {\n        let u = relu(y * 1)\n        y = sqrt(u)\n    }\n";
    cases.push((looped.into(), root));
    for (k, (y, what)) in cases.iter().enumerate() {
        let body = format!("    let z = x - 3\n{y}    loss l = 1e-9 * mean[batch](sum[n, m](y))\n");
        let at = prepared(&format!("pole-of-{k}"), &body, "    optimizer sgd(lr = 1e-12)\n");
        let text = std::fs::read_to_string(at.join("bad.mw")).unwrap();
        std::fs::write(at.join("bad.mw"), text.replace("m = 3", "m = 3, k = 2")).unwrap();
        let err = failed(&at, &["--no-save", "--steps", "3"]);
        assert!(err.contains(&format!("= help: {what}")), "{y}: {err}");
        assert!(!err.contains("smaller learning rate"), "{y}: {err}");
    }
    let body = "    let y = log1p(x * w - 2)\n    loss l = mean[batch](sum[n, m](y))\n";
    let err = failed(
        &prepared("pole-log1p", body, "    optimizer sgd(lr = 1e-12)\n"),
        &["--no-save", "--steps", "3"],
    );
    assert!(err.contains("= help: `log1p` at -1 is infinite: keep away from -1 by"), "{err}");
}

/// Where a derivative is infinite, smaller steps do not help, and neither does a line that is there.
#[test]
fn an_infinite_derivative_says_what_to_add() {
    let clip = "    optimizer sgd(lr = 1e-12)\n    clip global_norm = 1.0\n";
    for (i, (of, what, fixed)) in [
        ("sqrt(sum[m](h * h))", "the derivative of `sqrt` at 0 is infinite", "sqrt(sum[m](h * h) + 1e-12)"),
        ("sum[m](h ** 0.5)", "the derivative of `**` at 0 is infinite", "sum[m]((h + 1e-6) ** 0.5)"),
        ("sum[m](1 / h)", "`/` has divided by 0", "sum[m](1 / (h + 1e-6))"),
        ("sum[m](log(h))", "`log` at 0 is infinite", "sum[m](log(h + 1e-6))"),
        ("sum[m](rsqrt(h))", "`rsqrt` at 0 is infinite", "sum[m](rsqrt(h + 1e-12))"),
    ]
    .into_iter()
    .enumerate()
    {
        let body = |y: &str| {
            format!(
                "    let h = sum[n](x * w) - sum[n](x)\n    let y = {y}\n    loss l = 1e-9 * mean[batch](y)\n"
            )
        };
        let at = prepared(&format!("pole-{i}"), &body(of), clip);
        let err = failed(&at, &["--no-save", "--steps", "3"]);
        assert!(err.contains("= help: ") && err.contains(what), "{of}: {err}");
        assert!(!err.contains("`clip global_norm = 1.0`"), "{of}: {err}");
        let small = fixed.split(" + ").nth(1).unwrap().split(')').next().unwrap();
        assert!(err.contains(&format!(" + {small})")), "{of}: {small}: {err}");
        // What it says works.
        let at = prepared(&format!("pole-{i}"), &body(fixed), clip);
        let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        c.args(["train", "bad.mw", "--data", "x=x.npy", "--no-eval", "--no-save", "--steps", "3"])
            .current_dir(&at);
        let output = c.output().unwrap();
        assert!(output.status.success(), "{fixed}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // Without the line it is proposed where steps were too large.
    let body = "    let h = sum[n](x * w)\n    loss l = mean[batch](sum[m](h * h))\n";
    for (clip, proposed) in [("", true), ("    clip global_norm = 1e30\n", false)] {
        let at = prepared("pole-rate", body, &format!("    optimizer sgd(lr = 1e20)\n{clip}"));
        let err = failed(&at, &["--no-save", "--steps", "9"]);
        assert!(err.contains("try a smaller learning rate"), "{err}");
        assert_eq!(err.contains("`clip global_norm = 1.0`"), proposed, "{err}");
    }
}

/// A learning rate that is infinite is no matter of its size.
#[test]
fn an_infinite_learning_rate_says_so() {
    let body = "    let h = sum[n](x * w)\n    loss l = mean[batch](sum[m](h * h))\n";
    for rate in ["1 / (step - 2)", "exp(1000 * step)"] {
        let at = prepared("infinite-rate", body, &format!("    optimizer sgd(lr = {rate})\n"));
        let err = failed(&at, &["--no-save", "--steps", "9"]);
        let helps = err.contains("write an expression of `step` that is finite at every step");
        assert!(helps && !err.contains("smaller learning rate"), "{rate}: {err}");
    }
}

/// A model of `y`, with an `h` that is 0 at some places and not below.
fn guarded(name: &str, y: &str) -> PathBuf {
    let body = format!(
        "    let h = (x - 1) * mean[m](w)\n    let c = h > 0\n    let y = {y}\n    loss l = mean[batch](sum[n](y))\n"
    );
    prepared(name, &body, "    optimizer sgd(lr = 1e-6)\n")
}

/// A value that is not chosen counts as 0 in the gradient, times a derivative that may be infinite. The loss may never show it.
#[test]
fn what_a_where_does_not_choose_is_named_with_a_safe_operand() {
    for (k, (y, fixed)) in [
        ("where(c, log(h), 0)", "where(c, log(where(c, h, 1)), 0)"),
        ("where(not c, 0, log(h))", "where(not c, 0, log(where(not c, 1, h)))"),
        ("where(h > 0, sqrt(h), 0)", "where(h > 0, sqrt(where(h > 0, h, 1)), 0)"),
        ("where(c, 2 / h, 0)", "where(c, 2 / where(c, h, 1), 0)"),
        ("where(c, x / h, 0)", "where(c, x / where(c, h, 1), 0)"),
        ("where(c, h ** 0.5, 0)", "where(c, where(c, h, 1) ** 0.5, 0)"),
        ("where(c, h ** -1, 0)", "where(c, where(c, h, 1) ** -1, 0)"),
        ("where(c, rsqrt(h), 0)", "where(c, rsqrt(where(c, h, 1)), 0)"),
        ("where(c, log1p(h - 1), 0)", "where(c, log1p(where(c, h - 1, 1)), 0)"),
        ("where(c, h * log(h) + 1, 0)", "where(c, h * log(where(c, h, 1)) + 1, 0)"),
        ("where(h < 1, exp(1000 * h), 0)", "where(h < 1, exp(where(h < 1, 1000 * h, 1)), 0)"),
        ("c * log(h)", "c * log(where(h > 0, h, 1))"),
        ("cast(c, float) * (1 + sqrt(h))", "cast(c, float) * (1 + sqrt(where(h > 0, h, 1)))"),
    ]
    .into_iter()
    .enumerate()
    {
        let at = guarded(&format!("guarded-{k}"), y);
        for layout in LAYOUTS {
            let err = failed(&at, &[layout, &["--steps", "3"]].concat());
            let guard = if y.starts_with("where") { "a `where` that does not choose it" } else { "a mask" };
            for part in
                ["the first value that is not finite is `", "(line 7)", &format!("= help: {guard} (line 7)")]
            {
                assert!(err.contains(part), "{y} {layout:?}: `{part}` is not in\n{err}");
            }
            let said = err.split("choose the operand, `").nth(1).and_then(|s| s.split('`').next()).unwrap();
            let inner = said.replace("… / ", "").replace(" ** …", "");
            let (before, after) = inner.split_once('…').unwrap();
            assert!(fixed.contains(before) && fixed.contains(after), "{y}: {said} is not {fixed}");
            assert!(!err.contains("smaller learning rate"), "{y}: {err}");
        }
        // What it says works.
        assert_eq!(
            trained(&guarded(&format!("guarded-{k}"), fixed), &["--no-save", "--steps", "3"]),
            Some(0),
            "{fixed}"
        );
    }
}

/// The loss shows a value that was chosen: that it stands behind a `where` is not why.
#[test]
fn what_a_where_chooses_is_no_matter_of_the_where() {
    for (y, help) in
        [("where(h >= 0, log(h), 0)", "`log` at 0 is infinite"), ("where(h < 9, exp(100 * h), 0)", "smaller")]
    {
        let err = failed(&guarded("where-chosen", y), &["--no-save", "--steps", "3"]);
        assert!(err.contains("at step 1: the first value that is not finite is `y` (line 7)"), "{err}");
        assert!(err.contains(help) && !err.contains("does not choose"), "{err}");
    }
}

/// Parameters that are not finite are looked for where a checkpoint is due, and their cause from the one before.
#[test]
fn the_cause_of_a_parameter_that_is_not_finite_is_found() {
    // A step reads what the one before has counted: the fourth is the first with a value of 0.
    let body = "    state done[m] = 0
    done = done + 1
    let h = sum[n](x * w) - stop_gradient(sum[n](x * w)) + relu(3 - done)
    let y = where(h > 0, sqrt(h), 0)
    loss l = mean[batch](sum[m](y))
";
    let at = prepared("state-cause", body, "    optimizer sgd(lr = 1e-6)\n");
    for layout in LAYOUTS {
        let _ = std::fs::remove_dir_all(at.join("r"));
        let saved = ["--run", "r", "--checkpoint-every", "2", "--steps", "9"];
        let err = failed(&at, &[&saved, &layout[1..]].concat());
        for part in [
            "error[E0517]: `w` is not finite after step 4: the first value that is not finite is `d(y)` (line 8)",
            "no checkpoint is written of it",
            "the checkpoint of step 2 is the last one",
            "the derivative of `sqrt` at 0 is infinite",
            "steps 3 to 4 run again",
        ] {
            assert!(err.contains(part), "{layout:?}: `{part}` is not in\n{err}");
        }
        assert!(!at.join("r/checkpoints/step-0000000004.safetensors").exists());
        let err = failed(&at, &[layout, &["--steps", "9"]].concat());
        for part in ["after step 9", "that was in step 4", "steps 1 to 9 run again, with checks"] {
            assert!(err.contains(part), "{layout:?}: `{part}` is not in\n{err}");
        }
    }
    // In `f16` such a step updates nothing, at any scale.
    let err = failed(&at, &["--no-save", "--steps", "40", "--precision", "f16"]);
    for part in [
        "the loss scale falls below 1",
        "first value that is not finite is `d(y)` (line 8)",
        "`sqrt(where(h > 0, …, 1))`",
    ] {
        assert!(err.contains(part), "`{part}` is not in\n{err}");
    }
    assert!(!err.contains("--precision bf16"), "{err}");
}

#[test]
fn a_norm_is_finite_where_it_fits_and_named_where_not() {
    // Each element of the gradient of `w` is 4e30 to 4e31: their squares do not fit in `f32`, the norm does.
    let body = "    let y = sum[n](x * w)
    loss l = mean[batch](sum[m](y)) * SCALE
";
    let text = |scale: &str| body.replace("SCALE", scale);
    let train = "    optimizer sgd(lr = 0.1)\n    clip global_norm = 1.0\n";
    let at = prepared("norm-fits", &text("1e31"), train);
    for (k, layout) in LAYOUTS.iter().enumerate() {
        let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright"));
        c.args(["train", "bad.mw", "--data", "x=x.npy", "--no-eval", "--steps", "3"]).args(&layout[1..]);
        let run = format!("run-{k}");
        let output = c.args(["--run", &run]).current_dir(&at).env("NO_COLOR", "1").output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{layout:?}: {err}");
        let log = std::fs::read_to_string(at.join(run).join("metrics.jsonl")).unwrap();
        let of = |line: &str, key: &str| -> f64 {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line[key].as_f64().unwrap_or(f64::NAN)
        };
        let steps: Vec<&str> = log.lines().filter(|l| l.contains("\"step\"")).take(3).collect();
        assert!(steps.iter().all(|l| (1e31..1e33).contains(&of(l, "gradient_norm"))), "{layout:?}: {log}");
        assert!(of(steps[2], "loss") < of(steps[0], "loss"), "{layout:?}: {log}");
    }
    // The loss is 0.
    let at = prepared("norm-too-large", &text("4e37").replace("(x * w)", "(x * w) - sum[n](x)"), train);
    for layout in LAYOUTS {
        let err = failed(&at, &[layout, &["--steps", "3"]].concat());
        for part in [
            "error[E0517]: the norm of all gradients is inf at step 1",
            "the first value that is not finite is `gradient norm`",
        ] {
            assert!(err.contains(part), "{layout:?}: `{part}` is not in\n{err}");
        }
    }
}

/// The mean of squared gradients has the dtype of the parameter: what does not fit is named, and no checkpoint has it.
#[test]
fn a_moment_that_overflows_is_named_before_it_is_saved() {
    let body = "    loss l = 1e25 * mean[batch, m](sum[n](x * w))\n";
    for (optimizer, moment) in
        [("adam(lr = 0.1)", "w/v"), ("lamb(lr = 0.1)", "w/v"), ("adafactor(lr = 0.1)", "w/v")]
    {
        let at = prepared("moments", body, &format!("    optimizer {optimizer}\n"));
        let err = failed(&at, &["--run", "r", "--steps", "2"]);
        for part in ["error[E0517]: `", moment, " is not finite after step 2", "`clip global_norm = 1.0`"] {
            assert!(err.contains(part), "{optimizer}: {part}: {err}");
        }
        assert!(!at.join("r/checkpoints/step-0000000002.safetensors").exists());
        // Clipped it fits, and so does a gradient of any size in a wider type.
        let clipped = format!("    optimizer {optimizer}\n    clip global_norm = 1.0\n");
        let at = prepared("moments-clipped", body, &clipped);
        assert_eq!(trained(&at, &["--run", "r", "--steps", "2"]), Some(0), "{optimizer}");
        let at = prepared("moments-wide", body, &format!("    optimizer {optimizer}\n"));
        assert_eq!(
            trained(&at, &["--run", "r", "--steps", "2", "--precision", "f64"]),
            Some(0),
            "{optimizer}"
        );
    }
}

/// Without checkpoints it is named at the end, and in the step itself where the norm of the gradients is known.
#[test]
fn a_moment_that_overflows_is_named_without_checkpoints() {
    let body = "    loss l = 1e22 * mean[batch, m](sum[n](x * w))\n";
    for optimizer in ["adam(lr = 0.1)", "adamw(lr = 0.1)", "adafactor(lr = 0.1)"] {
        let at = prepared("moments-unsaved", body, &format!("    optimizer {optimizer}\n"));
        let known: &[&str] = &["--metrics", "gradient_norm"];
        for layout in LAYOUTS {
            for (more, step) in [(&[][..], 3), (known, 1)] {
                let err = failed(&at, &[layout, more, &["--steps", "3"]].concat());
                let named = format!("error[E0517]: `w/v` is not finite after step {step}");
                assert!(err.contains(&named), "{optimizer} {layout:?} {more:?}: {err}");
                assert!(err.contains("`clip global_norm = 1.0`"), "{optimizer}: {err}");
            }
        }
        let wide = ["--no-save", "--steps", "3", "--precision", "f64", "--metrics", "gradient_norm"];
        assert_eq!(trained(&at, &wide), Some(0), "{optimizer}");
    }
}

/// The loss of the first step.
pub(crate) fn first_loss(at: &Path, more: &[&str]) -> f64 {
    let _ = std::fs::remove_dir_all(at.join("r"));
    let output = train(at, more).args(["--run", "r", "--steps", "2"]).output().unwrap();
    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
    let log = std::fs::read_to_string(at.join("r/metrics.jsonl")).unwrap();
    let first = log.lines().find(|l| l.contains("\"step\"")).unwrap();
    serde_json::from_str::<serde_json::Value>(first).unwrap()["loss"].as_f64().unwrap()
}

/// `0.9 * average + 0.1 * parameter` is at most the greater of both.
#[test]
fn averages_of_huge_parameters_fit() {
    let train = "    optimizer sgd(lr = 0.1)\n    ema 0.9\n";
    let at = prepared("huge-averages", "    loss l = mean[batch, n](x) + mean[n, m](tanh(w))\n", train);
    let text = std::fs::read_to_string(at.join("bad.mw")).unwrap();
    for (value, precision) in [("3.4e38", "f32"), ("6e4", "f16"), ("3.3e38", "bf16")] {
        std::fs::write(at.join("bad.mw"), text.replace("w[n, m] = 1", &format!("w[n, m] = {value}")))
            .unwrap();
        for layout in LAYOUTS {
            first_loss(&at, &[&layout[1..], &["--precision", precision]].concat());
            let newest = meshwright_runs::checkpoint::Which::Newest;
            let read = meshwright_train::read_checkpoint(&at.join("r"), newest).unwrap();
            let all = read.checkpoint.whole().unwrap();
            let of = |name: &str| all[name].to_f64().unwrap();
            let (w, average) = (of("w"), of("w/ema"));
            assert!(
                w.iter().zip(&average).all(|(w, a)| (w - a).abs() <= 1e-6 * w),
                "{precision}: {average:?}"
            );
        }
    }
}
