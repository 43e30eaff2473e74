//! The command from end to end: exit codes, the exact forms of what it reports, and that its parts agree.

use crate::support::{SMALL, folder, options, run};
use meshwright_core::{model_flops, training_step};
use meshwright_train::Project;
use serde_json::Value;

const BOTH: [&str; 4] = ["--layout", "batch -> r; hidden -> c", "--mesh", "r=2,c=2"];

fn with<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The keys of an object in the order in which they were written.
fn keys(line: &str) -> Vec<String> {
    let mut out: Vec<(usize, String)> = json(line)
        .as_object()
        .unwrap()
        .keys()
        .map(|k| (line.find(&format!("\"{k}\":")).unwrap(), k.clone()))
        .collect();
    out.sort();
    out.into_iter().map(|k| k.1).collect()
}

#[test]
fn exit_codes() {
    let cases: &[(&[&str], i32)] = &[
        (&["check", "mlp"], 0),
        (&["--help"], 0),
        (&["--version"], 0),
        (&["explain", "E0310"], 0),
        (&["models"], 0),
        (&["layouts", "zero3"], 0),
        (&[], 2),
        (&["chekc", "mlp"], 2),
        (&["check"], 2),
        (&["check", "mlp", "--dim", "batch"], 2),
        (&["check", "mlp", "--color"], 2),
        (&["train", "mlp", "--steps", "1", "--epochs", "1"], 2),
        (&["train", "mlp", "--resume"], 2),
        (&["check", "no_such_file.mw"], 1),
        (&["explain", "E9999"], 1),
        (&["check", "bert"], 0),
    ];
    for (args, code) in cases {
        let said = run(args);
        assert_eq!(said.code, Some(*code), "{args:?}: {}{}", said.out, said.err);
    }
}

#[test]
fn each_mistake_in_a_layout_has_a_code_of_its_own() {
    let cases: &[(&str, &[&str])] = &[
        ("E0302", &["--mesh", "r=2", "--layout", "bach -> r"]),
        ("E0301", &["--mesh", "r=2", "--layout", "batch -> q"]),
        ("E0304", &["--mesh", "r=2", "--layout", "batch -> r; rows -> r"]),
        ("E0305", &["--mesh", "r=2", "--layout", "batch -> r, r"]),
        ("E0303", &["--mesh", "r=2,c=2", "--layout", "batch -> r; batch -> c"]),
        ("E0306", &["--mesh", "r=0", "--layout", "batch -> r"]),
        ("E0308", &["--mesh", "r=2,r=2", "--layout", "batch -> r"]),
        ("E0307", &["--mesh", "r=2,c=2", "--layout", "batch -> r", "--expect-devices", "6"]),
        ("E0515", &["--mesh", "r=2", "--layout", "no_such_layout"]),
        ("E0201", &["--dim", "bach=10"]),
        ("E0201", &["--set", "rate=10"]),
        ("E0101", &["--mesh", "r=2", "--layout", "batch -> "]),
    ];
    for (code, args) in cases {
        for command in ["check", "explain", "train"] {
            let said = run(&with(&[&[command, "mlp"], args]));
            assert_eq!(said.code, Some(1), "{command} {args:?}: {}", said.err);
            assert!(said.err.contains(&format!("error[{code}]")), "{command} {args:?}: {}", said.err);
            let json = run(&with(&[&[command, "mlp", "--format", "json"], args]));
            let line = json.err.lines().find(|l| l.starts_with("{\"diagnostic\":")).unwrap();
            assert_eq!(super::cli::json(line)["diagnostic"]["code"], *code);
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_answered_with_the_nearest_name() {
    let said = run(&["train", "mnist_mpl"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("error[E0515]") && said.err.contains("`mnist_mlp`"), "{}", said.err);
    let said = run(&["check", "mlp", "--layout", "zer3"]);
    assert!(said.err.contains("`zero3`"), "{}", said.err);
}

#[test]
fn explain_reports_the_documented_json() {
    let said = run(&with(&[&["explain", "mlp", "--format", "json"], &BOTH]));
    assert_eq!(said.code, Some(0), "{}", said.err);
    let report = json(said.out.trim());
    assert_eq!(
        keys(&said.out),
        ["program", "mesh", "devices", "values", "collectives", "per_device", "totals"]
    );
    assert_eq!(report["mesh"].to_string(), r#"[{"axis":"r","size":2},{"axis":"c","size":2}]"#);
    assert_eq!(report["devices"], 4);
    let collectives = report["collectives"].as_array().unwrap();
    for c in collectives {
        for key in ["op", "axes", "bytes", "phase", "value", "line", "because"] {
            assert!(c.get(key).is_some_and(|v| !v.is_null()), "{key}: {c}");
        }
        assert!(["forward", "backward", "update"].contains(&c["phase"].as_str().unwrap()), "{c}");
        assert!(c["line"].as_u64().unwrap() > 0 && !c["because"].as_str().unwrap().is_empty(), "{c}");
    }
    let total = |axis: &str| -> u64 {
        let over = |list: &[Value]| -> u64 {
            let of = list.iter().filter(|c| c["axes"] == serde_json::json!([axis]));
            of.map(|c| c["bytes"].as_u64().unwrap()).sum()
        };
        assert_eq!(over(report["totals"].as_array().unwrap()), over(collectives));
        over(collectives)
    };
    assert_eq!((total("r"), total("c")), (1_628_204, 2_000));
    for key in [
        "flops",
        "collective_bytes",
        "peak_bytes",
        "parameter_bytes",
        "optimizer_state_bytes",
        "working_copy_bytes",
        "gradient_bytes",
        "residual_bytes",
        "communication_bytes",
        "workspace_bytes",
    ] {
        assert!(report["per_device"][key].is_u64(), "{key}");
    }
    assert_eq!(report["per_device"]["collective_bytes"], 1_630_204);
    assert_eq!(report["per_device"]["parameter_bytes"], 1_628_200);
    // For people it is the same: every number of the collectives occurs in the table.
    let text = run(&with(&[&["explain", "mlp"], &BOTH])).out;
    assert!(text.contains("all-reduce") && text.contains("because"), "{text}");
}

#[test]
fn a_training_tells_its_events_in_the_documented_form_and_eval_agrees() {
    let dir = folder(SMALL);
    let path = |n: &str| dir.path().join(n).display().to_string();
    let (data, at) = (path("data"), path("run"));
    let sizes = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=11"];
    let train = with(&[
        &["train", "mlp", "--data", &data, "--run", &at, "--epochs", "2", "--format", "json"],
        &sizes,
        &BOTH,
    ]);
    let said = run(&train);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines.len(), 2 * 25 + 2 * 2 + 1);
    for line in &lines {
        let expected: &[&str] = match json(line)["event"].as_str().unwrap() {
            "step" => &[
                "event",
                "step",
                "loss",
                "learning_rate",
                "seconds",
                "examples_per_second",
                "model_flops",
                "mfu",
                "peak_flops",
                "bytes_communicated",
                "waiting",
                "memory_bytes",
                "time",
            ],
            "evaluation" => &["event", "step", "set", "eval_loss", "eval_accuracy", "seconds", "time"],
            "epoch" => {
                &["event", "epoch", "step", "train_loss", "eval_loss", "eval_accuracy", "seconds", "time"]
            }
            "done" => {
                &["event", "steps", "epochs", "seconds", "peak_memory_bytes", "peak_value_bytes", "time"]
            }
            other => panic!("{other}"),
        };
        assert_eq!(keys(line), expected, "{line}");
    }
    assert!(lines[0].starts_with("{\"event\":\"step\",\"step\":1,\"loss\":"), "{}", lines[0]);
    let first = json(lines[0]);
    let number = |key: &str| first[key].as_f64().unwrap();
    // Two devices or more exchange gradients, and some of the time is waited for them.
    assert!(number("bytes_communicated") > 0.0 && (0.0..1.0).contains(&number("waiting")), "{first}");
    assert!((number("examples_per_second") * number("seconds") / 12.0 - 1.0).abs() < 1e-9, "{first}");
    assert!(number("memory_bytes") > 1e6, "{first}");
    assert_eq!(json(lines[54])["event"], "done");
    // The folder has the same lines.
    let written = std::fs::read_to_string(dir.path().join("run/metrics.jsonl")).unwrap();
    assert_eq!(written, said.out);

    // Evaluation of the checkpoint gives the numbers of the last epoch: to the bit where the sums are the same.
    let last = json(lines[53]);
    assert_eq!(last["event"], "epoch");
    let eval = with(&[&["eval", "mlp", "--checkpoint", &at, "--data", &data, "--format", "json"], &sizes]);
    let same = json(run(&with(&[&eval, &BOTH])).out.trim());
    assert_eq!(same["eval_loss"], last["eval_loss"]);
    assert_eq!(same["eval_accuracy"], last["eval_accuracy"]);
    // On one device, and with batches of another size that leave another remainder: the same but for rounding.
    let mut other = eval.clone();
    other.extend(["--dim", "batch=7"]);
    let one = json(run(&other).out.trim());
    for key in ["eval_loss", "eval_accuracy"] {
        let (a, b) = (one[key].as_f64().unwrap(), last[key].as_f64().unwrap());
        assert!((a - b).abs() < 1e-6 * b, "{key}: {a} {b}");
    }

    // For people, without a terminal: plain lines.
    let text = run(&with(&[&["train", "mlp", "--data", &data, "--no-save", "--epochs", "1"], &sizes]));
    assert_eq!(text.code, Some(0), "{}", text.err);
    assert!(
        !text.out.contains('\r') && !text.out.contains('\u{1b}') && !text.err.contains('\u{1b}'),
        "{}",
        text.out
    );
    assert!(text.out.contains("accuracy"), "{}", text.out);
}

#[test]
fn bench_reports_the_documented_json() {
    let args =
        ["bench", "model", "mlp", "--steps", "5", "--warmup", "1", "--format", "json", "--dim", "hidden=16"];
    let said = run(&with(&[&args, &BOTH]));
    assert_eq!(said.code, Some(0), "{}", said.err);
    let result = json(said.out.trim());
    for key in ["median_ms", "min_ms", "p90_ms", "cpu_ms_per_step", "peak_rss_bytes"] {
        assert!(result[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {result}");
    }
    assert_eq!(result["samples"], 5);
    // The rate of the model is that of the operations that steps of a training tell, whatever runs beside them.
    let project = Project::load(&options("mlp", "", "", &[("hidden", 16)])).project.unwrap();
    let of_model = model_flops(&training_step(&project.program).unwrap()) as f64;
    for layout in [&BOTH[..], &["--layout", "recompute *"]] {
        let result = json(run(&with(&[&args, layout])).out.trim());
        let number = |key: &str| result[key].as_f64().unwrap();
        let (model, all) = (number("model_tflops"), number("tflops"));
        assert!((model * number("median_ms") * 1e9 / of_model - 1.0).abs() < 1e-9, "{result}");
        assert!(all >= model, "{result}");
    }
}

#[test]
fn predictions_come_in_the_order_of_the_file_on_any_mesh() {
    let dir = folder(SMALL);
    let path = |n: &str| dir.path().join(n).display().to_string();
    let model = std::fs::read_to_string(crate::support::root().join("models/mlp.mw")).unwrap();
    let with_output =
        // Sums over split dims differ in their last bits.
        model.replace("output probability  = softmax[classes](logits)", "output tilt = h * 0 + log(logits - logits)");
    assert_ne!(with_output, model);
    std::fs::write(dir.path().join("digits.mw"), with_output).unwrap();
    let (file, data, at) = (path("digits.mw"), path("data"), path("run"));
    let sizes = ["--dim", "batch=12", "--dim", "rows=5", "--dim", "cols=4", "--dim", "hidden=11"];
    let train = with(&[&["train", &file, "--data", &data, "--run", &at, "--epochs", "4"], &sizes]);
    assert_eq!(run(&train).code, Some(0));
    let predict =
        with(&[&["predict", &file, "--data", &data, "--checkpoint", &at, "--format", "json"], &sizes]);
    let one = run(&predict);
    assert_eq!(one.code, Some(0), "{}", one.err);
    let (first, examples) = one.out.split_once('\n').unwrap();
    let class = serde_json::json!({ "name": "class", "dtype": "i32", "dims": [], "each_example": true });
    let tilt = serde_json::json!({ "name": "tilt", "dtype": "f32", "dims": ["hidden", "classes"], "each_example": true });
    assert_eq!(json(first)["outputs"], serde_json::json!([class, tilt]));
    assert_eq!(examples.lines().count(), SMALL.test, "{}", one.out);
    assert_eq!(json(examples.lines().next().unwrap())["tilt"][10][9], "-Infinity");
    for mesh in [
        &BOTH[..],
        &["--layout", "batch -> a", "--mesh", "a=5"],
        &["--layout", "classes -> a", "--mesh", "a=3"],
    ] {
        let other = run(&with(&[&predict, mesh]));
        assert_eq!(other.out, one.out, "{mesh:?}: {}", other.err);
    }
    // They are right more often than guesses would be.
    let labels = std::fs::read(dir.path().join("data/test-label")).unwrap()[8..].to_vec();
    let right = examples.lines().zip(&labels).filter(|(line, label)| json(line)["class"] == **label);
    assert!(right.count() > SMALL.test / 2);
    assert_eq!(run(&with(&[&predict, &["--output", "clas"]])).code, Some(1));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_launcher_without_mpi_does_not_start_the_same_run_several_times() {
    let dir = folder(SMALL);
    let data = dir.path().join("data").display().to_string();
    let args = ["train", "mlp", "--data", &data, "--no-save", "--steps", "1", "--dim", "batch=12"];
    let sizes = ["--dim", "rows=5", "--dim", "cols=4"];
    let launched = |size: &str, rank: &str, number: &str, more: &[&str]| {
        let mut c = crate::support::command(&with(&[&args, &sizes, more]));
        c.env(size, "4").env(rank, number);
        crate::support::said(c.output().unwrap())
    };
    let variables = [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("WORLD_SIZE", "RANK"),
    ];
    for (size, rank) in variables {
        let first = launched(size, rank, "0", &[]);
        assert_eq!(first.code, Some(1), "{size}: {}", first.err);
        for part in ["error[E0525]", "4 processes", size, "cargo build --release --features mpi"] {
            assert!(first.err.contains(part), "{size}: {part}: {}", first.err);
        }
        // One speaks; but platforms that set this variable keep a log for each.
        let other = launched(size, rank, "3", &[]);
        assert_eq!(
            (other.code, other.err.is_empty()),
            (Some(1), size != "WORLD_SIZE"),
            "{size}: {}",
            other.err
        );
    }
    // Where it is meant.
    let meant = launched("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "0", &["--transport", "threads"]);
    assert_eq!(meant.code, Some(0), "{}", meant.err);
    let asked = run(&with(&[&args, &sizes, &["--transport", "mpi"]]));
    assert!(asked.code == Some(1) && asked.err.contains("error[E0525]"), "{}", asked.err);
}
