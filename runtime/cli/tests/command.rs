//! The command as users run it: exit codes, streams, formats.

use crate::fake_nccl;
use crate::support::{command, folder, lines, run, said};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const MESH: [&str; 4] = ["--layout", "batch -> r; hidden -> c", "--mesh", "r=2,c=2"];

#[test]
fn check_says_ok_or_what_is_wrong() {
    let (code, out, err) = run(&[&["check", "mlp"], &MESH[..]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("ok: 4 parameters, 814,090 elements, mesh r=2 x c=2 = 4 devices,"), "{out}");

    let wrong = ["check", "mlp", "--layout", "bacth -> r", "--mesh", "r=2"];
    let (code, out, err) = run(&wrong);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("error[E0302]") && err.contains("did you mean `batch`?"), "{err}");
    assert!(err.contains("`meshwright explain E0302`") && !err.contains('\u{1b}'), "{err}");
    assert!(run(&[&wrong[..], &["--color", "always"]].concat()).2.contains('\u{1b}'));

    let (code, out, err) = run(&[&wrong[..], &["--format", "json"]].concat());
    assert_eq!((code, out.as_str()), (1, "{\"ok\":false}\n"));
    assert_eq!(lines(&err)[0]["diagnostic"]["code"], "E0302");

    let (code, _, err) = run(&["check", "mlp_"]);
    assert_eq!(code, 1);
    assert!(err.contains("E0515") && err.contains("`mlp`"), "{err}");
}

/// What is no file is refused at once, and nothing is read to an end that it does not have.
#[test]
fn models_are_read_from_files() {
    let at = folder("no-files");
    let pipe = at.join("pipe.mw").display().to_string();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::write(at.join("uses.mw"), "use \"pipe.mw\"\ndim d = 2\n").unwrap();
    let uses = at.join("uses.mw").display().to_string();
    for (args, why) in [
        (&["check", pipe.as_str()][..], "it is a named pipe"),
        (&["check", uses.as_str()], "it is a named pipe"),
        (&["check", "mlp", "--layout", pipe.as_str()], "it is a named pipe"),
        (&["fmt", pipe.as_str()], "it is a named pipe"),
        (&["check", "/dev/zero"], "more bytes than the limit"),
        (&["check", "mlp", "--layout", "/dev/zero"], "more bytes than the limit"),
    ] {
        let (code, _, err) = run(args);
        assert!(code == 1 && err.contains("E0515") && err.contains(why), "{args:?}: {code} {err}");
    }
}

/// Names that would steer the terminal are shown, not obeyed.
#[test]
fn escapes_are_made_visible() {
    let name = "a\u{1b}[31m";
    let at = folder("escapes");
    let file = at.join(format!("{name}.mw")).display().to_string();
    std::fs::write(&file, "dim  batch = 4\n").unwrap();
    let wrong = format!("{file}.layout");
    std::fs::write(&wrong, "mesh r = 2\nnothing -> r\n").unwrap();
    for args in [
        &["check", file.as_str()][..],
        &["check", "mlp", "--layout", wrong.as_str()],
        &["check", "mlp", "--mesh", name],
        &["check", "mlp", "--dim", name],
        &["check", "mlp", "--preset", name],
        &["fmt", file.as_str()],
        &[name],
    ] {
        let (_, out, err) = run(args);
        assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{args:?}: {out}{err}");
    }
}

/// The largest texts that are wrong in the same way from end to end: time and memory are those of the process.
#[test]
fn large_texts_are_answered_in_time() {
    let at = folder("large");
    let write = |name: &str, text: String| {
        let file = at.join(name).display().to_string();
        std::fs::write(&file, text).unwrap();
        file
    };
    let model = write("m.mw", "dim d = 4\n".repeat(100_000));
    let strings = write("s.mw", "\"\n".repeat(500_000));
    let rules = write("r.layout", format!("mesh r = 2\n{} -> r\n", vec!["batch"; 100_000].join(", ")));
    let axes = write("a.layout", format!("mesh {}\n", vec!["r = 2"; 100_000].join(", ")));
    for args in [
        &["check", model.as_str()][..],
        &["fmt", strings.as_str()],
        &["check", "mlp", "--layout", rules.as_str()],
        &["check", "mlp", "--layout", axes.as_str()],
        &["check", "mlp", "--mesh", "r\u{a0}=\u{3000}2\u{2028}q=2\u{c}=="],
    ] {
        // Seconds of the CPU, of which others who share the machine take none; memory in KiB, with what is only reserved.
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "ulimit -t 4 && ulimit -d 2000000 && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_meshwright"),
        ]);
        let (code, _, err) = said(shell.args(args).output().unwrap());
        assert!(
            code == 1 && err.contains("error[E0") && err.len() < 1 << 20,
            "{args:?}: {code} {}",
            err.len()
        );
    }
}

#[test]
fn usage_errors_exit_2_and_help_exits_0() {
    for args in [
        &["train"][..],
        &["nonsense"],
        &["check", "mlp", "--dim", "batch"],
        &["train", "mlp", "--epochs", "1", "--steps", "1"],
        &["train", "mlp", "--resume"],
        &["explain", "mlp", "--emit", "after:nothing"],
        &["explain", "mlp", "--emit", "graph", "--format", "json"],
        &["explain", "mlp", "--emit", "burn", "--rank", "1"],
        &["explain", "mlp", "--emit", "plan", "--rank", "0"],
        &["explain", "mlp", "--emit", "plan", "--device", "cuda"],
        &["explain", "mlp", "--device", "cuda", "--why", "logits.classes"],
        &["explain", "mlp", "--device", "cuda", "--why", "loss"],
        &["check", "mlp", "--device", "cuda"],
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains("error: "), "{args:?}: {err}");
    }
    for command in [
        "train",
        "sweep",
        "eval",
        "predict",
        "check",
        "explain",
        "fmt",
        "bench",
        "models",
        "layouts",
        "maps",
        "machines",
        "import",
        "export",
        "ckpt",
        "lsp",
        "completions",
    ] {
        let (code, out, _) = run(&[command, "--help"]);
        assert!(code == 0 && out.contains("Usage: meshwright"), "{command}");
    }
}

#[test]
fn explain_prints_pages_of_codes() {
    let (code, out, _) = run(&["explain", "e0310"]);
    assert!(code == 0 && out.starts_with("E0310: implicit all-gather\n\n"), "{out}");
    let (code, _, err) = run(&["explain", "E0399"]);
    assert!(code == 1 && err.contains("E0521") && err.contains("E0401"), "{err}");
}

#[test]
fn explain_tells_of_ops() {
    let (code, out, err) = run(&["explain", "max"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("max(x, y)\n") && out.contains("max[d, e](x)\n"), "{out}");
    assert!(out.contains("float, float -> float") && out.contains("has a gradient"), "{out}");
    let (code, out, _) = run(&["explain", "<", "--format", "json"]);
    assert_eq!((code, &lines(&out)[0]["form"]), (0, &Value::from("x < y")));
    assert_eq!(lines(&out)[0]["gradient"], false);
}

#[test]
fn explain_says_why() {
    let args = [&["explain", "mlp", "--why", "h.hidden"], &MESH[..]].concat();
    let (code, out, _) = run(&args);
    assert_eq!(code, 0);
    assert!(out.starts_with("hidden of h[batch hidden] is split over c: at most 512 of 1,024"), "{out}");
    assert!(out.contains("rule 2 `hidden -> c` splits it over `c`") && out.contains("(--layout:1)"), "{out}");

    let (code, out, _) = run(&[&args[..], &["--format", "json"]].concat());
    let report = &lines(&out)[0];
    assert_eq!((code, report["axes"].clone()), (0, serde_json::json!(["c"])));
    let rule = &report["chain"][0]["facts"][0]["rule"];
    assert_eq!((rule["number"].as_u64(), rule["place"]["line"].as_u64()), (Some(2), Some(1)));
    let caused = &report["collectives"][0];
    assert_eq!((caused["op"].as_str(), caused["bytes"].as_u64()), (Some("all_reduce"), Some(2000)));

    let (code, out, err) = run(&["explain", "mlp", "--why", "hh.hidden"]);
    assert!(code == 1 && out.is_empty() && err.contains("E0523") && err.contains("`h.hidden`"), "{err}");
}

#[test]
fn explain_shows_where_what_is_and_what_moves() {
    let args = [&["explain", "mlp"], &MESH[..]].concat();
    let (code, out, _) = run(&args);
    assert_eq!(code, 0);
    let row = out.lines().find(|l| l.contains("all-reduce c")).unwrap();
    assert!(
        row.contains("logits") && row.contains("2,000") && row.contains("because `hidden` is summed"),
        "{row}"
    );
    assert!(out.contains("per step and device") && out.contains("GFLOP") | out.contains("MFLOP"));

    let (code, out, _) = run(&[&args[..], &["--format", "json"]].concat());
    let report = &lines(&out)[0];
    assert_eq!(code, 0);
    assert_eq!(report["mesh"], serde_json::json!([{"axis":"r","size":2},{"axis":"c","size":2}]));
    assert_eq!(report["devices"], 4);
    assert!(!report["values"].as_array().unwrap().is_empty());
    let collectives = report["collectives"].as_array().unwrap();
    let over_c: Vec<_> = collectives.iter().filter(|c| c["axes"] == serde_json::json!(["c"])).collect();
    assert_eq!(over_c.len(), 1);
    for (key, value) in [("op", "all_reduce"), ("phase", "forward"), ("value", "logits")] {
        assert_eq!(over_c[0][key], value);
    }
    assert_eq!(over_c[0]["bytes"], 2000);
    let bytes: u64 = collectives.iter().map(|c| c["bytes"].as_u64().unwrap()).sum();
    let device = report["per_device"].as_object().unwrap();
    let uses = "parameter optimizer_state working_copy gradient residual communication workspace".split(' ');
    let sum: u64 = uses.map(|u| device[&format!("{u}_bytes")].as_u64().unwrap()).sum();
    assert_eq!(device["peak_bytes"].as_u64(), Some(sum), "{device:?}");
    assert!(device["flops"].is_u64() && device["gradient_bytes"] != 0 && device["residual_bytes"] != 0);
    assert_eq!(report["per_device"]["collective_bytes"], bytes);
}

const LOOP: [&str; 6] = ["explain", "gpt", "--preset", "tiny", "--mesh", "data=2,model=2"];

#[test]
fn explain_shows_loops_and_what_recomputation_brings() {
    let rules = "batch -> data; heads, d_ff -> model; recompute layers.block.mlp.*, layers.block.norm1";
    let (code, out, err) = run(&[&LOOP[..], &["--layout", rules]].concat());
    assert_eq!(code, 0, "{err}");
    let below = |title: &str| out.split(&format!("  {title}\n")).nth(1).unwrap().lines();
    let mut forward = below("forward");
    let heading = forward.next().unwrap().trim();
    assert_eq!(heading, "repeat layers  4 iterations, 1.00 MiB in 2 collectives each");
    let inside = forward.next().unwrap();
    assert!(inside.contains("    layers.block.attention.out") && inside.contains("524,288"), "{inside}");
    let backward = below("backward").next().unwrap().trim().to_string();
    assert!(backward.starts_with("repeat layers  4 iterations from the last, "), "{backward}");
    // Behind a loop nothing is indented.
    let after = out.lines().find(|l| l.contains("bucket 3")).unwrap();
    assert!(after.starts_with("        bucket 3 "), "{after}");

    let (_, json, _) = run(&[&LOOP[..], &["--layout", rules, "--format", "json"]].concat());
    let report = &lines(&json)[0];
    assert_eq!(report["loops"][0], serde_json::json!({"dim": "layers", "iterations": 4, "reverse": false}));
    let [mlp, norm] = [0, 1].map(|i| &report["recompute"][i]);
    assert_eq!((&mlp["path"], &norm["path"]), (&"layers.block.mlp.*".into(), &"layers.block.norm1".into()));
    // 4 layers of 8 examples with 128 positions: 256 hidden units, before and behind the activation.
    let least = 4 * 8 * 128 * 256 * 4;
    assert!(mlp["saved_bytes"].as_i64().unwrap() >= least, "{mlp}");
    // One more product in each layer.
    let products = mlp["ops"].as_array().unwrap().iter().find(|o| o["op"] == "contract").unwrap();
    assert_eq!(products["count"], 4, "{mlp}");
    let said = out.lines().find(|l| l.starts_with("recompute  `layers.block.mlp.*` saves ")).unwrap();
    assert!(said.contains("MiB at the peak, adds ") && said.contains("4 contract"), "{said}");
    // The sums of feed-forward layers are made again with them, those of norms are not.
    let (_, whole, _) = run(&[&LOOP[..], &["--layout", "heads, d_ff -> model; recompute layers.*"]].concat());
    let said = whole.lines().find(|l| l.starts_with("recompute  `layers.*` saves ")).unwrap();
    assert!(said.ends_with(" in 4 all-reduce over model"), "{said}");
    let without = run(&[&LOOP[..], &["--layout", "batch -> data"]].concat()).1;
    assert!(!without.contains("recompute"), "{without}");
}

#[test]
fn stages_and_times_of_passes_are_shown() {
    let args = [&["explain", "mlp", "--time-passes", "--emit"], &["spmd"][..], &MESH].concat();
    let (code, spmd, times) = run(&args);
    assert_eq!(code, 0);
    assert!(spmd.contains("all_reduce[sum] c"), "{spmd}");
    assert!(times.contains("partition") && times.contains("total"), "{times}");
    let plan = |format| run(&[&["check", "mlp", "--emit", "plan", "--format", format], &MESH[..]].concat()).1;
    assert!(plan("text").contains("all_reduce[sum] c"));
    assert_eq!(lines(&plan("json"))[0]["mesh"]["axes"][0]["name"], "r");
    assert_eq!(plan("json"), plan("json"));
}

#[test]
fn the_graphs_of_a_device_are_shown() {
    let graphs = |rank| run(&[&["explain", "mlp", "--emit", "burn", "--rank", rank], &MESH[..]].concat());
    let (code, first, err) = graphs("0");
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(first.starts_with("rank 0 of 4 on cpu: "), "{first}");
    // Products and kernels by name, and collectives between them.
    for part in [" matmul [", " reduce [", " map [", "all_reduce sum b"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let (_, last, _) = graphs("3");
    assert!(last.starts_with("rank 3 of 4 on cpu: "), "{last}");
}

#[test]
fn a_run_trains_resumes_and_is_evaluated() {
    let at = folder("a_run");
    let here = |args: &[&str]| said(command(args).current_dir(&at).output().unwrap());
    let json = ["--format", "json"];
    let (code, out, err) = here(&[&["train", "mlp", "--steps", "20"], &MESH[..], &json].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    let events = lines(&out);
    assert_eq!(events.len(), 22);
    for (i, e) in events[..20].iter().enumerate() {
        assert_eq!(e["event"], "step");
        assert_eq!(e["step"], i + 1);
    }
    let loss = |i: usize| events[i]["loss"].as_f64().unwrap();
    assert!(loss(19) < 0.7 * loss(0), "{} {}", loss(0), loss(19));
    // The test set is measured at the end, also of a run that is shorter than an epoch.
    assert_eq!((&events[20]["event"], &events[20]["set"]), (&"evaluation".into(), &"test".into()));
    assert_eq!(events[21]["event"], "done");
    assert_eq!(std::fs::read_to_string(at.join("runs/mlp-1/metrics.jsonl")).unwrap(), out);

    // Another layout continues where the first stopped; without --resume the folder is refused.
    let more = ["train", "mlp", "--run", "runs/mlp-1", "--steps", "30"];
    let (code, _, err) = here(&more);
    assert!(code == 1 && err.contains("E0510"), "{err}");
    let (code, out, _) = here(&[&more[..], &["--resume", "--layout", "dp"], &json].concat());
    assert_eq!((code, lines(&out)[0]["step"].as_u64()), (0, Some(21)));

    let (code, out, _) = here(&["ckpt", "list", "runs/mlp-1"]);
    assert!(
        code == 0 && out.contains("step 30") && out.contains("logits.w  f32 [hidden=1024 classes=10]"),
        "{out}"
    );

    // A damaged checkpoint is passed over, and the reason is a sentence.
    let newest = std::fs::read_dir(at.join("runs/mlp-1/checkpoints")).unwrap().map(|e| e.unwrap().path());
    let newest = newest.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).max().unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, [&bytes[..bytes.len() - 1], &[!bytes[bytes.len() - 1]]].concat()).unwrap();
    let (code, _, err) = here(&[&more[..], &["--resume", "--no-eval"]].concat());
    assert!(code == 0 && err.contains("note: the checkpoint of step 30 cannot be used: `step-"), "{err}");
    assert!(err.contains("is damaged: its SHA-256 is wrong") && !err.contains("Skipped"), "{err}");
    let (code, out, _) = here(&[&["eval", "mlp", "--checkpoint", "runs/mlp-1"], &json[..]].concat());
    let eval = &lines(&out)[0];
    assert_eq!((code, eval["examples"].as_u64()), (0, Some(10_000)));
    assert!(eval["eval_accuracy"].as_f64().unwrap() > 0.5, "{eval}");
    let (code, out, err) = here(&["predict", "mlp", "--checkpoint", "runs/mlp-1", "--limit", "3"]);
    assert!(code == 0 && out.lines().count() == 3 && out.contains("  class "), "{out}{err}");

    // A run without a name takes the next number.
    assert_eq!(here(&["train", "mlp", "--steps", "1", "--no-eval"]).0, 0);
    assert!(at.join("runs/mlp-2").is_dir());
    assert_eq!(here(&["train", "mlp", "--steps", "1", "--no-eval", "--no-save"]).0, 0);
    assert!(!at.join("runs/mlp-3").exists());
}

#[test]
fn outputs_are_predicted_for_each_example() {
    let at = folder("predict");
    let here = |args: &[&str]| said(command(args).current_dir(&at).output().unwrap());
    let model = run(&["models", "mlp"]).1;
    let model = model.replace("    output probability = softmax[classes](logits)\n", "");
    std::fs::write(at.join("digits.mw"), model).unwrap();
    assert_eq!(here(&["train", "digits.mw", "--steps", "60", "--run", "a", "--no-eval"]).0, 0);
    let predict = ["predict", "digits.mw", "--checkpoint", "a", "--limit", "103", "--format", "json"];
    let (code, out, _) = here(&predict);
    let found = &lines(&out)[1..];
    assert_eq!((code, found.len()), (0, 103));
    // The first test images of the data set, as its authors print them.
    let first: Vec<_> = found.iter().take(4).map(|l| l["class"].as_u64().unwrap()).collect();
    assert_eq!(first, [7, 2, 1, 0]);
    assert_eq!(found[102]["example"], 102);
    assert_eq!(here(&[&predict[..], &["--layout", "batch -> r", "--mesh", "r=3"]].concat()).1, out);
}

#[test]
fn bench_reports_times() {
    let (code, out, _) = run(&["bench", "model", "mlp", "--steps", "3", "--warmup", "1", "--format", "json"]);
    let r = &lines(&out)[0];
    assert_eq!((code, r["samples"].as_u64()), (0, Some(3)));
    for key in ["median_ms", "min_ms", "p90_ms", "cpu_ms_per_step", "peak_rss_bytes"] {
        assert!(r[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let (code, _, err) = run(&["bench", "model", "mlp", "--steps", "1", "--warmup", "0", "--by", "launch"]);
    assert!(code == 0 && err.contains("--trace shows where their time goes"), "{err}");
}

#[test]
fn what_ships_is_listed_and_a_closed_pipe_is_no_failure() {
    let (code, out, _) = run(&["models"]);
    assert!(code == 0 && out.contains("mnist_mlp") && out.contains("bert"));
    assert!(run(&["layouts"]).1.contains("zero3"));
    assert!(run(&["layouts", "dp"]).1.contains("batch -> "));
    assert!(run(&["machines"]).1.contains("sakura-one"));
    let (code, out, _) = run(&["machines", "dgx-h100"]);
    assert!(code == 0 && out.contains("\nname = \"DGX H100 80 GB\"\n"), "{out}");
    let (code, out, _) = run(&["machines", "--format", "json"]);
    let cpu = out.lines().find(|l| l.contains("\"cpu\"")).unwrap();
    assert!(code == 0 && cpu.contains("compiler/cost/src/machines/cpu.machine.toml"), "{out}");
    let (code, _, err) = run(&["machines", "dgx-h10"]);
    assert!(
        code == 1 && err.contains("no machine `dgx-h10` ships") && err.contains("did you mean `dgx-h100`?"),
        "{err}"
    );
    assert!(run(&["completions", "bash"]).1.contains("meshwright"));

    let mut child =
        command(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[cfg(unix)]
#[test]
fn an_interrupt_writes_a_checkpoint_and_exits_130() {
    use std::io::{BufRead, BufReader};
    let at = folder("interrupt");
    let args = ["train", "mlp", "--epochs", "1000", "--run", "a", "--format", "json", "--no-eval"];
    let args = [&args[..], &["--metrics-file", "a.prom"]].concat();
    // Whoever runs the tests may ignore it.
    let mut c = Command::new("env");
    c.args(["--default-signal=INT", env!("CARGO_BIN_EXE_meshwright")]).args(args).current_dir(&at);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/data");
    c.env("MESHWRIGHT_DATA", data.canonicalize().unwrap());
    let mut child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // Whoever reads must go on reading, or the run waits for room in the pipe.
    let steps = out.lines().map_while(Result::ok).count();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8(output.stderr).unwrap().contains("interrupted after step"));
    let told = std::fs::read_to_string(at.join("a.prom")).unwrap();
    assert!(told.contains("state=\"interrupted\"} 1\n") && told.contains("state=\"running\"} 0\n"), "{told}");
    let (code, listed, _) =
        said(command(&["ckpt", "list", "a", "--format", "json"]).current_dir(&at).output().unwrap());
    assert_eq!((code, lines(&listed)[0]["step"].as_u64()), (0, Some(steps as u64 + 1)));
}

#[test]
fn collectives_are_timed_and_compared() {
    let args = ["bench", "collectives", "--op", "all", "--mesh", "r=3", "--max", "16KiB", "--iters", "3"];
    let (code, out, err) = run(&[&args[..], &["--format", "json"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    let found = lines(&out);
    assert_eq!(found[0]["event"], "head");
    assert_eq!((&found[0]["transport"], &found[0]["mesh"]), (&"threads".into(), &"r=3".into()));
    assert_eq!(found[0]["devices"], 3);
    assert!(found[0]["cores"].as_u64().unwrap() > 0);
    assert_eq!(found.len(), 1 + 6 * 2);
    let factors = [
        ("all_reduce", 4.0 / 3.0),
        ("reduce_scatter", 2.0 / 3.0),
        ("all_gather", 2.0 / 3.0),
        ("all_to_all", 2.0 / 3.0),
        ("permute", 1.0),
        ("broadcast", 1.0),
    ];
    for (line, (op, factor)) in found[1..].iter().zip(factors.into_iter().flat_map(|f| [f, f])) {
        assert_eq!((&line["op"], &line["type"], &line["wrong"]), (&op.into(), &"f32".into(), &0.into()));
        assert_eq!(line["redop"].as_str(), ["all_reduce", "reduce_scatter"].contains(&op).then_some("sum"));
        let number = |key: &str| line[key].as_f64().unwrap();
        assert_eq!(number("bytes"), number("count") * 4.0);
        assert!(number("least_us") > 0.0 && number("least_us") <= number("time_us"));
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(number("algbw_gbs"), number("bytes") / number("time_us") / 1e3), "{line}");
        assert!(near(number("busbw_gbs"), number("algbw_gbs") * factor), "{line}");
    }

    // Two groups of three side by side.
    let over = ["--mesh", "r=2,c=3", "--over", "c", "--max", "4KiB", "--iters", "3"];
    let found = lines(&run(&[&args[..4], &over[..], &["--format", "json"]].concat()).1);
    assert_eq!((&found[0]["over"], &found[0]["devices"]), (&serde_json::json!(["c"]), &6.into()));
    for l in &found[1..] {
        assert_eq!((&l["members"], &l["groups"], &l["wrong"]), (&3.into(), &2.into(), &0.into()));
    }
    let (_, out, err) = run(&[&args[..4], &over[..]].concat());
    assert!(out.contains("mesh r=2 x c=3 = 6 devices, 2 groups of 3, "), "{out}{err}");
    for (axes, why) in [("x", "no axis `x`, but r, c"), ("c,c", "`c` is there twice")] {
        let (code, _, err) = run(&[&args[..4], &["--mesh", "r=2,c=3", "--over", axes]].concat());
        assert!(code == 2 && err.contains(why), "{axes}: {err}");
    }

    let (code, out, err) = run(&[&args[..], &["--dtype", "u8", "--redop", "max", "--check", "0"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("transport threads, mesh r=3 = 3 devices, "), "{out}");
    assert!(out.ends_with("GB/s, nothing was compared\n") && out.lines().count() == 3 + 12 + 2, "{out}");

    for wrong in [
        &["--min", "1MiB"][..],
        &["--dtype", "u8"],
        &["--max", "1000000GiB"],
        &["--devices", "2"],
        &["--min", "x"],
        &["--factor", "1"],
    ] {
        let (code, out, err) = run(&[&args[..], wrong].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{wrong:?}: {err}");
    }
    let (code, _, err) = run(&["bench", "collectives", "--mesh", "r=0"]);
    assert!(code == 1 && err.contains("E0306"), "{err}");
}

#[test]
fn collectives_are_timed_on_gpus() {
    let fake = fake_nccl::library();
    let mut c = command(&[
        "bench",
        "collectives",
        "--transport",
        "nccl",
        "--devices",
        "2",
        "--op",
        "all",
        "--format",
        "json",
    ]);
    c.args(["--min", "4KiB", "--max", "4KiB", "--iters", "3", "--warmup", "1"]);
    let (code, out, err) =
        said(c.env("MESHWRIGHT_CUDA", fake).env("MESHWRIGHT_NCCL", fake).output().unwrap());
    assert_eq!((code, err.as_str()), (0, ""));
    let lines = lines(&out);
    assert_eq!((&lines[0]["transport"], lines.len()), (&"nccl".into(), 7));
    assert!(lines[1..].iter().all(|l| l["wrong"] == 0), "{out}");

    // Two ranks on the only GPU.
    let mut c =
        command(&["bench", "collectives", "--transport", "nccl", "--devices", "2", "--op", "all_reduce"]);
    c.args(["--max", "4KiB", "--iters", "3"]).env("FAKE_NCCL_GPUS", "1");
    c.env("MESHWRIGHT_CUDA", fake).env("MESHWRIGHT_NCCL", fake);
    let (code, _, err) = said(c.output().unwrap());
    assert!(code == 1 && err.contains("there is no GPU 1"), "{err}");
    let (code, out, err) = said(c.env("NCCL_MULTI_RANK_GPU_ENABLE", "1").output().unwrap());
    assert!(code == 0 && out.contains("all_reduce"), "{err}");

    let mut c = command(&["bench", "collectives", "--transport", "nccl", "--max", "4KiB"]);
    c.env("MESHWRIGHT_CUDA", "/nowhere/cuda").env("MESHWRIGHT_NCCL", "/nowhere/nccl");
    let (code, _, err) = said(c.output().unwrap());
    // Without a GPU nobody misses NCCL.
    assert!(code == 1 && err.contains("tried /nowhere/cuda") && !err.contains("nccl"), "{err}");
    let (code, _, err) = said(c.env("MESHWRIGHT_CUDA", fake).output().unwrap());
    assert_eq!(code, 1);
    assert!(err.contains("error[E0520]") && err.contains("NCCL was not found: tried /nowhere/nccl"), "{err}");
}

#[test]
fn what_a_backward_loop_reads_is_stored_by_layer_and_not_copied() {
    let (code, out, err) = run(&["explain", "gpt", "--preset", "tiny", "--emit", "burn"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let times = |what: &str| out.matches(what).count();
    let (stored, loaded) = (times(" store_residual "), times(" load_residual "));
    assert!(stored > 5 && loaded >= stored, "{stored} stored, {loaded} loaded");
}

/// `gpt.mw` is the file in this folder, `gpt` the model that ships.
#[test]
fn a_file_goes_before_what_ships_under_its_name() {
    let at = folder("own-gpt");
    let model = "dim batch = 2, d = 3\nmodel own {\n    input x[batch, d]: float\n    param w[d] = 0\n    output y = sum[d](x * w)\n}\n";
    std::fs::write(at.join("gpt.mw"), model).unwrap();
    for (name, parameters) in [("gpt.mw", "ok: 1 parameter,"), ("gpt", "ok: 20 parameters,")] {
        let output = command(&["check", name]).current_dir(&at).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert!(out.starts_with(parameters), "{name}: {out}{}", String::from_utf8_lossy(&output.stderr));
    }
}
