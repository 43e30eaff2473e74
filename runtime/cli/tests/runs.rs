//! Runs as users have them: their folder says all of them, checkpoints come when they are wanted, and metrics go where they
//! are read.

use crate::support::{self, MODEL, command, events, file, lines, prepared, run_in as run, steps};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn the_folder_of_a_run_is_all_that_a_command_needs() {
    let at = prepared("truth");
    let layout = ["--layout", "batch -> r; features -> c", "--mesh", "r=2,c=2"];
    let with = ["--data", "data", "--dim", "batch=20", "--set", "lr=0.25", "--precision", "f64"];
    let train = [&["train", "sums.mw", "--run", "a", "--steps", "12"], &layout[..], &with[..]].concat();
    let whole = steps(&events(&at, &train));

    // The same in two parts: the second has no word but the folder, in another working folder, and the model is gone.
    let parts = [&["train", "sums.mw", "--run", "b", "--steps", "7"], &layout[..], &with[..]].concat();
    events(&at, &parts);
    std::fs::rename(at.join("sums.mw"), at.join("elsewhere.mw")).unwrap();
    std::fs::create_dir(at.join("inside")).unwrap();
    let inside = at.join("inside");
    let more = events(&inside, &["train", "--run", "../b", "--resume", "--steps", "12"]);
    assert_eq!(steps(&more), whole[7..]);
    assert!(file(&at, "b/run.toml").contains("mesh = \"r=2,c=2\""), "{}", file(&at, "b/run.toml"));

    // Evaluation and prediction too, and to the bit what the run said of itself.
    let last = |run: &str| {
        let all = lines(&file(&at, &format!("{run}/metrics.jsonl")));
        all.into_iter().rfind(|e| e["event"] == "evaluation").unwrap()
    };
    let eval = &events(&inside, &["eval", "../b"])[0];
    assert_eq!(
        (&eval["eval_loss"], &eval["eval_accuracy"]),
        (&last("b")["eval_loss"], &last("b")["eval_accuracy"])
    );
    assert_eq!(eval["eval_loss"], last("a")["eval_loss"]);
    let classes = events(&inside, &["predict", "../b", "--limit", "3"]);
    assert_eq!(classes.len(), 1 + 3, "{classes:?}");

    // What an option changes is said.
    let (code, _, err) =
        run(&inside, &["eval", "../b", "--layout", "batch -> k", "--mesh", "k=3", "--dim", "batch=10"]);
    assert_eq!(code, 0, "{err}");
    for note in [
        "note: layout: batch -> k; the run had batch -> r; features -> c\n",
        "note: mesh: k=3; the run had r=2,c=2\n",
        "note: dim batch: 10; the run had 20\n",
    ] {
        assert!(err.contains(note), "{note}{err}");
    }
    // Another layout on the mesh of the run.
    let (code, _, err) = run(&inside, &["eval", "../b", "--layout", "batch -> c"]);
    assert!(code == 0 && !err.contains("mesh"), "{err}");

    // Each start is kept, with its words.
    let history = lines(&file(&at, "b/history.jsonl"));
    let told: Vec<_> = history.iter().map(|e| (e["event"].as_str().unwrap(), e["step"].as_u64())).collect();
    assert_eq!(told, [("start", Some(0)), ("resume", Some(7))]);
    assert_eq!(history[0]["model_sha256"], history[1]["model_sha256"]);
    assert_eq!(history[1]["arguments"][3], "../b");

    let (code, _, err) = run(&at, &["eval", "nowhere"]);
    assert!(code == 1 && err.contains("is not the folder of a run") && err.contains("--checkpoint"), "{err}");
    let (code, _, err) = run(&at, &["train", "--run", "nowhere", "--resume"]);
    assert!(code == 1 && err.contains("E0510") && err.contains("--resume=auto"), "{err}");
}

#[test]
fn one_command_starts_a_run_and_continues_it() {
    let at = prepared("auto");
    let args =
        |n: &'static str| ["train", "sums.mw", "--data", "data", "--run", "a", "--resume=auto", "--steps", n];
    assert_eq!(steps(&events(&at, &args("3"))).len(), 3);
    let more = steps(&events(&at, &args("5")));
    assert_eq!(more.iter().map(|s| s.0).collect::<Vec<_>>(), [4, 5]);
    let (code, _, err) = run(&at, &["train", "--run", "b", "--resume=auto"]);
    assert!(code == 1 && err.contains("E0510"), "{err}");
}

fn kept(at: &Path, run: &str) -> Vec<u64> {
    let list = events(at, &["ckpt", "list", run]);
    list.iter().map(|e| e["step"].as_u64().unwrap()).collect()
}

#[test]
fn checkpoints_come_when_they_are_wanted_and_the_best_is_kept() {
    let at = prepared("saves");
    let train = |run: &'static str| ["train", "sums.mw", "--data", "data", "--run", run, "--steps", "25"];
    events(&at, &[&train("a")[..], &["--checkpoint-every", "4", "--keep", "4", "--no-eval"]].concat());
    // 10 steps an epoch: at its end too.
    assert_eq!(kept(&at, "a"), [16, 20, 24, 25]);
    // From an older one the run takes the same way.
    let all = steps(&lines(&file(&at, "a/metrics.jsonl")));
    let again = events(&at, &["train", "--run", "a", "--resume", "--from", "16", "--no-eval"]);
    assert_eq!(steps(&again), all[16..]);
    let (code, _, err) = run(&at, &["train", "--run", "a", "--resume", "--from", "17"]);
    assert!(code == 1 && err.contains("no checkpoint of step 17") && err.contains("16, 20, 24, 25"), "{err}");

    // A rate that destroys what was learned: the best is an early one.
    let spoil = ["--set", "lr=1000", "--eval-every", "5", "--keep-best", "min:loss", "--keep", "1"];
    let told = events(&at, &[&train("b")[..], &spoil].concat());
    let evals: Vec<_> = told.iter().filter(|e| e["event"] == "evaluation").collect();
    assert_eq!(evals.iter().map(|e| e["step"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 10, 15, 20, 25]);
    let loss = |e: &&&Value| e["eval_loss"].as_f64().unwrap();
    let best = evals.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).unwrap();
    let at_step = best["step"].as_u64().unwrap();
    let mut expected = vec![at_step, 25];
    expected.dedup();
    assert_eq!(kept(&at, "b"), expected);
    let eval = &events(&at, &["eval", "b", "--from", "best"])[0];
    assert_eq!(eval["eval_loss"], best["eval_loss"]);
}

#[test]
fn a_run_ends_when_its_evaluations_become_no_better() {
    let at = prepared("patience");
    let args = ["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "100", "--set", "lr=0"];
    let patience = ["--eval-every", "3", "--patience", "2", "--monitor", "accuracy"];
    let (code, out, err) = run(&at, &[&args[..], &patience].concat());
    // Nothing changes: the first evaluation is the best, and the second one after it ends the run.
    assert!(code == 0 && err.contains("stopped early after step 9"), "{err}{out}");
    assert_eq!(steps(&lines(&file(&at, "a/metrics.jsonl"))).len(), 9);
    assert_eq!(kept(&at, "a"), [6, 9]);
    let (code, _, err) = run(&at, &[&args[..], &["--patience", "1", "--monitor", "acuracy"]].concat());
    assert!(code == 1 && err.contains("did you mean `accuracy`?"), "{err}");
}

#[test]
fn every_step_is_measured_and_told_in_other_forms_too() {
    let at = prepared("metrics");
    let args =
        ["train", "sums.mw", "--data", "data", "--run", "a", "--layout", "batch -> r", "--mesh", "r=2"];
    let asked =
        ["--steps", "12", "--metrics", "accuracy,gradient_norm", "--log", "csv", "--log", "tensorboard"];
    let told = events(&at, &[&args[..], &asked].concat());
    let first = &told[0];
    assert_eq!(first["learning_rate"], 0.5);
    let (accuracy, norm) =
        (first["train_accuracy"].as_f64().unwrap(), first["gradient_norm"].as_f64().unwrap());
    assert!((0.0..=1.0).contains(&accuracy) && norm > 0.0, "{first}");
    // The evaluation of the epoch's end and of the run's, each with its step.
    let evals: Vec<_> =
        told.iter().filter(|e| e["event"] == "evaluation").map(|e| e["step"].as_u64()).collect();
    assert_eq!(evals, [Some(10), Some(12)]);

    // The table has a row for each line, and goes on where the run does.
    events(&at, &["train", "--run", "a", "--resume", "--steps", "14"]);
    let table = file(&at, "a/metrics.csv");
    let mut rows = table.lines();
    let head: Vec<&str> = rows.next().unwrap().split(',').collect();
    let column = |name: &str| head.iter().position(|h| *h == name).unwrap();
    let rows: Vec<Vec<&str>> = rows.map(|r| r.split(',').collect()).collect();
    let log = lines(&file(&at, "a/metrics.jsonl"));
    assert_eq!(rows.len(), log.len());
    for (row, line) in rows.iter().zip(&log) {
        assert_eq!(row[column("event")], line["event"]);
        for key in ["step", "loss", "train_accuracy", "gradient_norm", "eval_loss"] {
            let cell = line.get(key).map_or(String::new(), Value::to_string);
            assert_eq!(row[column(key)], cell, "{key}");
        }
    }
    assert_eq!(std::fs::read_dir(at.join("a/tensorboard")).unwrap().count(), 2);

    // Without being asked for, the norm is told where the model clips it; and it is of the gradients before that.
    let clipped = MODEL.replace("optimizer", "clip global_norm = 0.001\n    optimizer");
    std::fs::write(at.join("clipped.mw"), clipped).unwrap();
    let told = events(&at, &["train", "clipped.mw", "--data", "data", "--steps", "1", "--no-save"]);
    assert!((told[0]["gradient_norm"].as_f64().unwrap() - norm).abs() < 1e-6 * norm, "{}", told[0]);
    let (code, _, err) = run(&at, &[&args[..4], &["--metrics", "acuracy"]].concat());
    assert!(code == 1 && err.contains("did you mean `accuracy`?"), "{err}");
}

/// The samples of a file for Prometheus: names without what all begin with and labels that all have, which come second.
fn samples(text: &str) -> (Vec<(String, f64)>, String) {
    let mut common = String::new();
    let mut out = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap();
        let (own, all): (Vec<&str>, Vec<&str>) = labels
            .split("\",")
            .partition(|l| !["run=", "model=", "layout="].iter().any(|of| l.starts_with(of)));
        let (own, all) = (own.join("").replace('"', ""), all.join(" ").replace('"', ""));
        assert!(common.is_empty() || common == all, "{line}");
        common = all;
        let name = name.strip_prefix("meshwright_training_").unwrap();
        out.push((format!("{name} {own}").trim_end().to_string(), value.parse().unwrap()));
    }
    (out, common)
}

#[test]
fn a_file_for_prometheus_says_how_a_run_stands() {
    let at = prepared("prometheus");
    let args = ["train", "sums.mw", "--data", "data", "--layout", "batch -> r", "--mesh", "r=2"];
    let file_of = ["--run", "a", "--metrics-file", "a.prom", "--metrics", "accuracy", "--peak-flops", "1e9"];
    let told = events(&at, &[&args[..], &file_of, &["--steps", "12"]].concat());
    let (found, labels) = samples(&file(&at, "a.prom"));
    let run_folder = std::path::absolute(at.join("a")).unwrap();
    assert_eq!(labels, format!("layout=batch -> r model=sums run={}", run_folder.display()));
    let value =
        |name: &str| found.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name}: {found:?}")).1;
    assert_eq!(found.iter().filter(|(n, v)| n.starts_with("state ") && *v == 1.0).count(), 1);
    assert_eq!((value("state state=finished"), value("state state=running")), (1.0, 0.0));
    assert_eq!(
        (value("step"), value("target_step"), value("epochs"), value("devices")),
        (12.0, 12.0, 1.2, 2.0)
    );
    let last = |kind: &str| told.iter().rfind(|e| e["event"] == kind).unwrap();
    let (step, eval) = (last("step"), last("evaluation"));
    for (name, event, key) in [
        ("loss", step, "loss"),
        ("metric name=accuracy", step, "train_accuracy"),
        ("learning_rate", step, "learning_rate"),
        ("step_collective_bytes", step, "bytes_communicated"),
        ("resident_memory_bytes", step, "memory_bytes"),
        ("evaluation_loss set=test", eval, "eval_loss"),
        ("evaluation_metric name=accuracyset=test", eval, "eval_accuracy"),
        ("evaluation_step set=test", eval, "step"),
    ] {
        assert_eq!(value(name), event[key].as_f64().unwrap(), "{name}");
    }
    assert!(value("step_collective_bytes") > 0.0 && value("planned_memory_bytes") > 0.0, "{found:?}");
    // A run this short has one interval: all its steps.
    let of = |key: &str| {
        told.iter().filter(|e| e["event"] == "step").map(|e| e[key].as_f64().unwrap()).sum::<f64>()
    };
    let seconds = of("seconds");
    let near = |name: &str, expected: f64| {
        assert!((value(name) - expected).abs() <= 1e-9 * expected, "{name}: {} {expected}", value(name));
    };
    near("step_duration_seconds", seconds / 12.0);
    near("examples_per_second", 120.0 / seconds);
    near("model_flops_utilization_ratio", of("model_flops") / (seconds * 2e9));
    assert!((0.0..=1.0).contains(&value("waiting_ratio")));

    // A run that goes on has the same labels, and the file its later steps.
    events(&at, &["train", "--run", "a", "--resume", "--steps", "14", "--metrics-file", "a.prom"]);
    let (found, again) = samples(&file(&at, "a.prom"));
    assert_eq!(again, labels);
    assert!(found.contains(&("step".into(), 14.0)) && found.contains(&("state state=finished".into(), 1.0)));
    // Without the option it is left alone.
    events(&at, &["train", "--run", "a", "--resume", "--steps", "15"]);
    assert_eq!(samples(&file(&at, "a.prom")).0, found);

    // One that is not saved is named by the file; one that ends with an error has failed.
    let spoiled = ["--no-save", "--steps", "9", "--set", "lr=1e300", "--metrics-file", "b.prom"];
    let (code, _, err) = run(&at, &[&args[..], &spoiled].concat());
    assert!(code == 1 && err.contains("E0517"), "{err}");
    let (found, labels) = samples(&file(&at, "b.prom"));
    assert!(labels.ends_with("model=sums run=b"), "{labels}");
    assert!(found.contains(&("state state=failed".into(), 1.0)), "{found:?}");
    assert!(found.iter().any(|(name, _)| name == "loss"), "{found:?}");
}

#[test]
fn a_file_for_prometheus_that_cannot_be_written_is_told_before_the_run() {
    let at = prepared("prometheus_refused");
    let args = ["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "2", "--metrics-file"];
    let (code, _, err) = run(&at, &[&args[..], &["a.txt"]].concat());
    assert!(code == 2 && err.contains("write `a.prom`"), "{err}");
    let (code, _, err) = run(&at, &[&args[..], &["nowhere/a.prom"]].concat());
    assert!(
        code == 1 && err.contains("E0511") && err.contains("`nowhere/a.prom` cannot be written"),
        "{err}"
    );
    assert!(err.contains("help: name a file in a folder that is there"), "{err}");
    assert!(!at.join("a").exists() && !at.join("nowhere").exists());
    let (code, _, err) = run(&at, &[&args[..], &["a.prom"]].concat());
    assert!(code == 0 && at.join("a.prom").exists(), "{err}");
}

#[test]
fn what_is_not_finite_is_never_saved_and_a_lost_manifest_is_repaired() {
    let at = prepared("poison");
    // The loss of the last step is finite; its update is not.
    let args = ["train", "sums.mw", "--data", "data", "--run", "a", "--no-eval", "--checkpoint-every", "1"];
    events(&at, &[&args[..], &["--steps", "2"]].concat());
    let poisoned = MODEL.replace("sgd(lr = lr)", "sgd(lr = lr * (1 / (3 - step)))");
    std::fs::write(at.join("sums.mw"), poisoned).unwrap();
    let resume =
        ["train", "sums.mw", "--data", "data", "--run", "a", "--no-eval", "--resume", "--steps", "3"];
    let (code, _, err) = run(&at, &resume);
    assert!(code == 1 && err.contains("E0517") && err.contains("`w` is not finite after step 3"), "{err}");
    assert!(err.contains("the checkpoint of step 2 is the last one"), "{err}");
    assert_eq!(kept(&at, "a"), [1, 2]);

    for step in [1, 2] {
        std::fs::remove_file(at.join(format!("a/checkpoints/step-{step:010}.json"))).unwrap();
    }
    let (code, _, err) = run(&at, &["train", "--run", "a", "--resume", "--no-eval"]);
    assert!(code == 1 && err.contains("without a manifest") && err.contains("ckpt repair"), "{err}");
    // Nobody else may be at work in it.
    let lock = std::fs::File::open(at.join("a/run.lock")).unwrap();
    lock.lock().unwrap();
    let (code, _, err) = run(&at, &["ckpt", "repair", "a"]);
    assert!(code == 1 && err.contains("E0510") && err.contains("another process"), "{err}");
    drop(lock);
    let (code, out, err) = run(&at, &["ckpt", "repair", "a"]);
    assert!(code == 0 && out.contains("step 1, 2"), "{out}{err}");
    assert_eq!(kept(&at, "a"), [1, 2]);
}

#[test]
fn a_run_that_needs_more_memory_than_there_is_does_not_begin() {
    let at = prepared("memory");
    let wide = MODEL
        .replace("classes = 2", "classes = 2, wide = 600000, wider = 600000")
        .replace("    let logits = sum[features](x * w)", "    param u[features, wide] = 0\n    param v[wide, wider] = 0\n    param w[wider, classes] = 0\n    let logits = sum[wider](sum[wide](sum[features](x * u) * v) * w)")
        .replace("    param w[features, classes] = normal(0, 0.1)\n", "");
    std::fs::write(at.join("wide.mw"), wide).unwrap();
    let (code, _, err) = run(&at, &["train", "wide.mw", "--data", "data", "--run", "w"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("E0401") && err.contains("the largest are `d(v)` 1.31 TiB, `v` 1.31 TiB"), "{err}");
    assert!(!at.join("w").exists(), "nothing was made");
    let many = [
        "train",
        "sums.mw",
        "--data",
        "data",
        "--dim",
        "batch=100",
        "--layout",
        "batch -> r",
        "--mesh",
        "r=1000000",
    ];
    let (code, _, err) = run(&at, &many);
    assert!(code == 1 && err.contains("E0401") && err.contains("devices in one process take about"), "{err}");
}

/// A file may have 64 KiB at most, as on a disk that is full: the checkpoint is larger. Training does not go on without.
#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_at_once() {
    let at = prepared("full");
    let wide = MODEL
        .replace("classes = 2", "classes = 2, wide = 4000")
        .replace("let logits = sum[features](x * w)", "param u[features, wide] = 0\n    param v[wide, classes] = 0\n    let logits = sum[features](x * w) + sum[wide](sum[features](x * u) * v)");
    std::fs::write(at.join("wide.mw"), wide).unwrap();
    let binary = env!("CARGO_BIN_EXE_meshwright");
    let train = "train wide.mw --data data --run f --steps 1000000 --checkpoint-every 3 --no-eval";
    let script = format!("ulimit -f 128; exec {binary} {train}");
    let out = Command::new("sh").args(["-c", &script]).current_dir(&at).output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("E0514") && err.contains("File too large"), "{err}");
    let done = file(&at, "f/metrics.jsonl").lines().count();
    assert!((3..200).contains(&done), "{done} steps");
    assert!(
        !at.join("f/checkpoints").read_dir().unwrap().any(|e| e.unwrap().file_name() != "best.json"),
        "nothing half written"
    );
}

/// A library that makes every closing of a folder below `closing` an I/O error, as a disk over a network may.
const CLOSING_FAILS: &str = r#"
unsafe extern "C" {
    fn __errno_location() -> *mut i32;
    fn dirfd(folder: *mut u8) -> i32;
    fn close(fd: i32) -> i32;
}
#[unsafe(no_mangle)]
pub extern "C" fn closedir(folder: *mut u8) -> i32 {
    let fd = unsafe { dirfd(folder) };
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
    if path.to_string_lossy().contains("/closing") {
        unsafe { *__errno_location() = 5 };
        return -1;
    }
    unsafe { close(fd) }
}
"#;

#[test]
fn an_error_at_the_closing_of_a_folder_ends_nothing() {
    let at = prepared("closing");
    std::fs::write(at.join("closing.rs"), CLOSING_FAILS).unwrap();
    let beside = Path::new(env!("CARGO")).with_file_name("rustc");
    let rustc = if beside.exists() { beside } else { "rustc".into() };
    let library = ["--edition", "2024", "--crate-type", "cdylib", "closing.rs"];
    assert!(Command::new(rustc).args(library).current_dir(&at).status().unwrap().success());
    for args in [
        &["train", "sums.mw", "--data", "data", "--steps", "12"][..],
        &["train", "--run", "runs/sums-1", "--resume", "--steps", "14"],
        &["ckpt", "list", "runs/sums-1"],
        &["fmt", "--check", "."],
        &["check", "sums.mw"],
    ] {
        let out =
            command(args).env("LD_PRELOAD", at.join("libclosing.so")).current_dir(&at).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        // The model is not in style.
        let right = if args[0] == "fmt" { 1 } else { 0 };
        assert_eq!(out.status.code(), Some(right), "{args:?}: {err}");
    }
}

/// Less perplexity is better, and nothing but the model or the command can know it.
#[test]
fn nothing_is_chosen_the_wrong_way() {
    let at = prepared("direction");
    let metric = "    metric perplexity = exp(mean[batch](cross_entropy[classes](logits, y)))\n    output";
    std::fs::write(at.join("sums.mw"), MODEL.replacen("    output", metric, 1)).unwrap();
    let args = ["train", "sums.mw", "--data", "data", "--run", "a", "--steps", "12", "--eval-every", "3"];
    let wrong = |more: &[&str]| {
        let (code, _, err) = run(&at, more);
        for part in [
            "error[E0516]: nothing says whether more or less of the metric `perplexity` is better",
            "declared here, without `min` or `max`",
            "`max:perplexity` where more is better, `min:perplexity` where less is",
            "`metric max perplexity = …`, or `metric min perplexity = …`",
        ] {
            assert!(code == 1 && err.contains(part), "{more:?}: {part}: {err}");
        }
        assert!(!at.join("a").exists() && !at.join("s").exists(), "{more:?}");
    };
    wrong(&[&args[..], &["--keep-best", "perplexity"]].concat());
    wrong(&[&args[..], &["--patience", "2", "--monitor", "perplexity"]].concat());
    let sweep =
        ["sweep", "sums.mw", "--data", "data", "--run", "s", "--set", "lr=0.0001,0.5", "--epochs", "2"];
    let halving = [&sweep[..], &["--search", "halving", "--reduction", "2", "--objective"]].concat();
    wrong(&[&halving[..], &["perplexity"]].concat());

    let best = |dir: &str| -> Value {
        serde_json::from_str(&file(&at, &format!("{dir}/checkpoints/best.json"))).unwrap()
    };
    let least = |dir: &str| {
        let all = lines(&file(&at, &format!("{dir}/metrics.jsonl")));
        let values =
            all.iter().filter(|e| e["event"] == "evaluation").map(|e| e["eval_perplexity"].as_f64().unwrap());
        values.fold(f64::INFINITY, f64::min)
    };
    // Said by the command, and by the model.
    let (code, _, err) = run(
        &at,
        &[&args[..], &["--keep-best", "min:perplexity", "--patience", "9", "--monitor", "max:accuracy"]]
            .concat(),
    );
    assert!(code == 0 && err.contains("--keep-best: less `perplexity` is better"), "{err}");
    assert!(err.contains("--patience: more `accuracy` is better"), "{err}");
    assert_eq!(best("a")["value"].as_f64(), Some(least("a")));
    let said = MODEL.replacen("    output", &metric.replace("metric", "metric min"), 1);
    std::fs::write(at.join("said.mw"), said).unwrap();
    let said = ["train", "said.mw", "--data", "data", "--run", "b", "--steps", "12", "--eval-every", "3"];
    events(&at, &[&said[..], &["--keep-best", "perplexity"]].concat());
    assert_eq!(best("b"), best("a"));
    // The run keeps which way it was, and goes on so.
    assert!(file(&at, "b/run.toml").contains("keep_best = \"min:perplexity\""));
    let (code, shown, err) = run(&at, &["runs", "show", "b"]);
    assert!(code == 0 && shown.contains("max:accuracy min:perplexity"), "{shown}{err}");
    assert!(shown.lines().any(|l| l.contains("best by") && l.contains("min:perplexity")), "{shown}");
    events(&at, &["train", "--run", "b", "--resume", "--steps", "15"]);
    assert_eq!(best("b")["value"].as_f64(), Some(least("b")));
    // Halving goes on with the trial that learns.
    let (code, out, err) = run(&at, &[&halving[..], &["min:perplexity", "--format", "jsonl"]].concat());
    assert!(
        code == 0 && err.contains("halving goes on with the least `perplexity` (min:perplexity)"),
        "{err}"
    );
    let state = |lr: f64| lines(&out).into_iter().find(|r| r["lr"] == lr).unwrap()["state"].clone();
    assert_eq!((state(0.0001), state(0.5)), ("stopped".into(), "finished".into()));
    // A report says it of its curves.
    let (code, _, err) = run(&at, &["report", "b", "--output", "r.html"]);
    assert!(
        code == 0 && file(&at, "r.html").contains("\"better\":{\"accuracy\":\"max\",\"perplexity\":\"min\"}"),
        "{err}"
    );
}

/// Where no other set is held out, and the model or the command says which way it goes.
#[test]
fn a_choice_by_the_test_set_is_warned_of() {
    let at = prepared("chosen");
    let said = |more: &[&str]| {
        let args = ["train", "sums.mw", "--data", "data", "--steps", "2", "--keep-best", "max:accuracy"];
        let (code, _, err) = run(&at, &[&args[..], more].concat());
        assert_eq!(code, 0, "{err}");
        err
    };
    let warned = "choose by the test set, as there is no validation set";
    let err = said(&["--run", "a"]);
    assert!(
        err.contains(&format!("warning: `--keep-best` {}", warned.replace("choose", "chooses"))),
        "{err}"
    );
    let err = said(&["--run", "b", "--patience", "3"]);
    assert!(err.contains(&format!("warning: `--keep-best`, `--patience` {warned}")), "{err}");
    assert!(!said(&["--run", "c", "--validation", "0.2"]).contains("test set"));
}

/// What the models of all runs that have a metric say of it stands in the titles of tables.
#[test]
fn tables_say_which_way_a_metric_is_better() {
    let at = prepared("ways");
    for (run, word) in [("a", ""), ("b", "min ")] {
        let metric = format!("    metric {word}perplexity = exp(l)\n    output");
        std::fs::write(at.join("sums.mw"), MODEL.replacen("    output", &metric, 1)).unwrap();
        events(&at, &["train", "sums.mw", "--data", "data", "--run", run, "--steps", "2"]);
    }
    let titles = |runs: &[&str]| run(&at, &[&["runs", "ls", "--format", "markdown"][..], runs].concat()).1;
    let (one, both) = (titles(&["b"]), titles(&["a", "b"]));
    for title in ["test accuracy (max)", "test perplexity (min)"] {
        assert!(one.contains(title), "{title}: {one}");
        assert_eq!(both.contains(title), title.contains("accuracy"), "{title}: {both}");
    }
}

/// The data are the numbers in the files, whatever type they are read as: so another precision is no other data.
#[test]
fn a_run_on_floats_goes_on_in_another_precision() {
    let at = prepared("precisions");
    let train = |run: &str, precision: &str, steps: &str, more: &[&str]| {
        let args = ["train", "sums.mw", "--data", "data", "--run", run, "--no-eval", "--steps", steps];
        support::steps(&events(&at, &[&args[..], &["--precision", precision], more].concat()))
    };
    let whole = train("whole", "f64", "12", &[]);
    assert_eq!(whole.len(), 12);
    for (run, [first, second, third]) in
        [("a", ["f32", "bf16", "f64"]), ("b", ["f64", "f16", "f32"]), ("c", ["f64", "f32", "bf16"])]
    {
        let mut all = train(run, first, "4", &[]);
        all.extend(train(run, second, "8", &["--resume"]));
        all.extend(train(run, third, "12", &["--resume"]));
        assert_eq!(all.len(), 12, "{run}");
        for ((step, loss), (of_whole, expected)) in all.iter().zip(&whole) {
            assert_eq!(step, of_whole);
            assert!((loss - expected).abs() < 0.02 * expected, "{run}, step {step}: {loss}, not {expected}");
        }
    }
    // What is in the files is what is compared.
    let mut x = std::fs::read(at.join("data/train_x.npy")).unwrap();
    let last = x.len() - 1;
    x[last] ^= 1;
    std::fs::write(at.join("data/train_x.npy"), x).unwrap();
    let resume = ["train", "--run", "a", "--resume", "--steps", "13", "--precision", "f32"];
    let (code, _, err) = run(&at, &resume);
    assert!(code == 1 && err.contains("E0518"), "{err}");
}

/// What only the `train` block reads is like its text: another value is noted, and the run goes on with it.
#[test]
fn a_run_goes_on_with_another_rate() {
    let at = prepared("rate");
    let model = MODEL.replace("const lr = 0.5", "const lr = 0.5, scale = 1, base = 1, twice = 2 * base");
    let model = model
        .replace("sum[features](x * w)", "sum[features](x * w) * scale")
        .replace("lr = lr", "lr = lr * twice");
    std::fs::write(at.join("sums.mw"), &model).unwrap();
    let args = ["train", "sums.mw", "--data", "data", "--no-eval", "--run"];
    events(&at, &[&args[..], &["a", "--steps", "5"]].concat());
    events(&at, &[&args[..], &["b", "--steps", "5"]].concat());
    // As an edit of the text would have it.
    std::fs::write(at.join("edited.mw"), model.replace("lr = lr", "lr = 0.05")).unwrap();
    let edited =
        ["train", "edited.mw", "--data", "data", "--no-eval", "--run", "b", "--resume", "--steps", "9"];
    let want = steps(&events(&at, &edited));
    let (code, out, err) = run(
        &at,
        &[
            "train",
            "--run",
            "a",
            "--resume",
            "--set",
            "lr=0.05",
            "--steps",
            "9",
            "--no-eval",
            "--format",
            "json",
        ],
    );
    assert!(code == 0 && err.contains("const lr: 0.05; the run had 0.5"), "{err}");
    assert_eq!(steps(&lines(&out)), want);
    let rates: Vec<Option<f64>> =
        lines(&out).iter().filter(|e| e["event"] == "step").map(|e| e["learning_rate"].as_f64()).collect();
    assert_eq!(rates, [Some(0.1); 4]);
    // The history has both, and from then on the run has the new one.
    let starts = lines(&file(&at, "a/history.jsonl"));
    assert_eq!(
        starts.iter().map(|e| e["consts"]["lr"].as_f64()).collect::<Vec<_>>(),
        [Some(0.5), Some(0.05)]
    );
    let more = events(&at, &["train", "--run", "a", "--resume", "--steps", "10", "--no-eval"]);
    assert_eq!(more.iter().find(|e| e["event"] == "step").unwrap()["learning_rate"], 0.1);
    // A const of the `train` block by way of another one.
    let (code, _, err) =
        run(&at, &["train", "--run", "a", "--resume", "--set", "base=2", "--steps", "11", "--no-eval"]);
    assert!(
        code == 0 && err.contains("const base: 2; the run had 1") && err.contains("const twice: 4"),
        "{err}"
    );
    // What the model reads is another model.
    let (code, _, err) = run(&at, &["train", "--run", "a", "--resume", "--set", "scale=2", "--steps", "12"]);
    assert!(code == 1 && err.contains("E0518") && err.contains("`scale` = 1, it is resumed with 2"), "{err}");
}
