//! `calibrate` and `estimate --against`, as a user types them.

use crate::support::{folder, run, run_in};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn a_machine_is_measured_and_estimates_use_it() {
    let at = folder("calibrated");
    let args =
        ["calibrate", "--minutes", "0.01", "--mesh", "all=2", "--name", "Here", "--output", "here.toml"];
    let (code, out, err) = run_in(&at, &args);
    assert_eq!(code, 0, "{err}");
    for part in
        ["Here", "GFLOP/s", "all_reduce among 2", "mlp, batch -> all", "by family: ", "--machine here.toml"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    for part in ["measuring kernels", "measuring collectives", "measuring overlap", "measuring plans"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    let text = std::fs::read_to_string(at.join("here.toml")).unwrap();
    for part in [
        "# Here: measured by `meshwright calibrate` on 20",
        "[calibration]",
        "[errors]",
        "matmul = ",
        "collective = ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Every band is that of the file, and says so.
    let estimate = ["estimate", "mlp", "--layout", "dp", "--mesh", "2", "--machine", "here.toml"];
    let (code, out, err) = run_in(&at, &estimate);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("of Here with threads") && out.contains("(calibrated on "), "{out}");
    let found = json(&run_in(&at, &[&estimate[..], &["--format", "json"]].concat()).1);
    assert_eq!(found["machine"]["calibrated"], true);
    // It may be measured again, in place of the older one, and checked.
    let (code, out, err) = run_in(
        &at,
        &["calibrate", "--check", "here.toml", "--minutes", "0.01", "--mesh", "all=2", "--format", "json"],
    );
    assert_eq!(code, 0, "{err}");
    let errors = &json(&out)["errors"];
    assert!(
        errors["plans"].as_array().unwrap().len() >= 5 && errors["families"]["matmul"].is_number(),
        "{out}"
    );
    assert_eq!(std::fs::read_to_string(at.join("here.toml")).unwrap(), text, "a check writes nothing");
}

#[test]
fn mistakes_are_found_before_anything_is_measured() {
    let at = folder("not-calibrated");
    std::fs::write(at.join("mine.toml"), "precious = true\n").unwrap();
    let (code, _, err) = run_in(&at, &["calibrate", "--output", "mine.toml"]);
    assert!(code == 1 && err.contains("E0524") && err.contains("no calibrated machine"), "{err}");
    assert_eq!(std::fs::read_to_string(at.join("mine.toml")).unwrap(), "precious = true\n");
    let (code, _, err) = run_in(&at, &["calibrate", "--output", "nowhere/mine.toml"]);
    assert!(code == 1 && err.contains("E0524") && err.contains("nowhere/mine.toml"), "{err}");
    let (code, _, err) = run_in(&at, &["calibrate", "--check", "mine.toml"]);
    assert!(code == 1 && err.contains("E0531") && err.contains("precious"), "{err}");
    for (option, value, expected) in [
        ("--minutes", "0", "above 0 and at most 60"),
        ("--minutes", "long", "above 0 and at most 60"),
        ("--mesh", "all", "error"),
        ("--mesh", "all=2000", "1024"),
    ] {
        let (code, _, err) = run_in(&at, &["calibrate", option, value]);
        assert!((code == 2 || code == 1) && err.contains(expected), "{option} {value}: {code} {err}");
    }
    // Built without GPUs, the command says so before it measures anything, as others do, and no file is there.
    let (code, _, err) = run_in(&at, &["calibrate", "--device", "cuda", "--output", "gpu.toml"]);
    let built = cfg!(feature = "cuda");
    assert!(
        built || (code == 1 && err.contains("E0520") && err.contains("lacks the feature `cuda`")),
        "{err}"
    );
    assert!(!at.join("gpu.toml").exists());
    let (code, _, err) = run_in(&at, &["calibrate", "--device", "cubecl-cpu"]);
    assert!(code == 2 && err.contains("for tests"), "{err}");
    // The name is a line of the file.
    let (code, _, err) = run_in(&at, &["calibrate", "--name", "two\nlines", "--minutes", "0.01"]);
    assert!(code == 2 && err.contains("a name on one line"), "{err}");
    let (code, _, err) = run_in(&at, &["calibrate", "--check", "cpu", "--name", "x"]);
    assert!(code == 2 && err.contains("--name"), "{err}");
}

const MLP: &[&str] = &["mlp", "--layout", "batch -> data", "--mesh", "data=2"];

fn estimate<'a>(of: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [&["estimate"], of, &["--machine", "cpu"], more].concat()
}

#[test]
fn a_timeline_is_compared_by_part_and_by_collective() {
    let at = folder("against-trace");
    let (code, _, err) = run_in(
        &at,
        &[&["bench", "model"], MLP, &["--steps", "6", "--warmup", "2", "--trace", "t.json"]].concat(),
    );
    assert_eq!(code, 0, "{err}");
    let found = json(&run_in(&at, &estimate(MLP, &["--against", "t.json", "--format", "json"])).1);
    let seconds = |v: &Value, key: &str| v[key].as_f64().unwrap();
    let all = found["parts"].as_array().unwrap();
    let names: Vec<&str> = all.iter().map(|p| p["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["matmul", "memory_bound", "update", "collective"], "{found}");
    assert!(all.iter().all(|p| seconds(p, "measured") > 0.0) && seconds(&found, "measured") > 0.0, "{found}");
    let plain = json(&run(&estimate(MLP, &["--format", "json"])).1);
    let estimated: f64 = all.iter().map(|p| seconds(p, "estimated")).sum();
    assert!((estimated / seconds(&plain, "seconds") - 1.0).abs() < 1e-6, "{found}");
    let collectives = found["collectives"].as_array().unwrap();
    assert_eq!(collectives.len(), plain["collectives"].as_array().unwrap().len());
    for c in collectives {
        assert!(
            c["op"] == "all_reduce" && seconds(c, "measured") > 0.0 && seconds(c, "estimated") > 0.0,
            "{c}"
        );
    }
    let (code, out, _) = run_in(&at, &estimate(MLP, &["--against", "t.json"]));
    assert!(code == 0 && out.contains("8 steps, median") && out.contains("all-reduce"), "{out}");
    // Of another program it says nothing.
    let other = ["mlp", "--layout", "hidden -> data", "--mesh", "data=2"];
    let (code, _, err) = run_in(&at, &estimate(&other, &["--against", "t.json"]));
    assert!(code == 1 && err.contains("E0516") && err.contains("another Plan"), "{err}");
    std::fs::write(at.join("other.json"), "{}").unwrap();
    let (code, _, err) = run_in(&at, &estimate(MLP, &["--against", "other.json"]));
    assert!(code == 1 && err.contains("E0515") && err.contains("no timeline"), "{err}");
}

#[test]
fn a_run_is_compared_as_a_whole() {
    let at = folder("against-run");
    let of = ["mnist_mlp", "--layout", "dp", "--mesh", "2"];
    let train = [&["train"], &of[..], &["--steps", "8", "--no-eval", "--run", "r"]].concat();
    let (code, _, err) = run_in(&at, &train);
    assert_eq!(code, 0, "{err}");
    let found = json(&run_in(&at, &estimate(&of, &["--against", "r", "--format", "json"])).1);
    assert_eq!((&found["steps"], &found["parts"]), (&8.into(), &serde_json::json!([])));
    assert!(found["measured"].as_f64().unwrap() > 0.0 && found["error"].is_number(), "{found}");
    for (of, expected) in [
        (&["mnist_mlp"][..], "on one device"),
        (&["mnist_mlp", "--layout", "dp", "--mesh", "2", "--dim", "batch=50"], "with batch=100"),
        (
            &["mnist_mlp", "--layout", "hidden1 -> data", "--mesh", "data=2"],
            "the estimate has `hidden1 -> data`",
        ),
    ] {
        let (code, _, err) = run_in(&at, &estimate(of, &["--against", "r"]));
        assert!(code == 1 && err.contains("E0516") && err.contains(expected), "{err}");
    }
    let (code, _, err) = run_in(&at, &estimate(&of, &["--against", "."]));
    assert!(code == 1 && err.contains("E0510") && err.contains("holds no run"), "{err}");
}
