//! `estimate` and `selftest foresight`, as a user types them.

use crate::support::{folder, run, run_in};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(&[args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

const GPT: &[&str] = &[
    "estimate",
    "gpt",
    "--preset",
    "tiny",
    "--layout",
    "batch -> data; moments: * -> data",
    "--mesh",
    "data=4",
    "--precision",
    "bf16",
    "--machine",
    "dgx-h100",
];

#[test]
fn an_estimate_has_its_fields() {
    let e = json(GPT);
    for field in [
        "version",
        "model",
        "layout",
        "mesh",
        "devices",
        "machine",
        "engine",
        "seconds",
        "error",
        "breakdown",
        "hidden",
        "memory",
        "model_flops",
        "mfu",
        "tflops_per_device",
        "examples_per_second",
        "tokens_per_second",
        "tokens_per_second_per_device",
        "pipe",
        "collectives",
    ] {
        assert!(e.get(field).is_some(), "{field}");
    }
    for part in [
        "matmul",
        "attention",
        "memory_bound",
        "update",
        "launch",
        "exposed",
        "contention",
        "bubble",
        "straggler",
    ] {
        assert!(e["breakdown"].get(part).is_some(), "{part}");
    }
    for part in [
        "peak_bytes",
        "device_bytes",
        "fits",
        "parameters",
        "optimizer_state",
        "working_copies",
        "gradients",
        "residuals",
        "communication",
        "workspace",
    ] {
        assert!(e["memory"].get(part).is_some(), "{part}");
    }
    let first = &e["collectives"][0];
    for part in [
        "op",
        "axes",
        "bytes",
        "times",
        "members",
        "nodes",
        "algorithm",
        "seconds",
        "exposed_seconds",
        "value",
        "line",
        "rule",
    ] {
        assert!(first.get(part).is_some(), "{part}");
    }
    assert_eq!((&e["devices"], &e["machine"]["name"]), (&4.into(), &"dgx-h100".into()));
    assert_eq!(e["layout"], "batch -> data; moments: * -> data");
    assert_eq!(e["memory"]["fits"], "yes");
    assert!(e["pipe"].is_null());
}

/// Without attention and collectives no part of an estimate is negative, and the hidden part exceeds the rounding.
#[test]
fn no_time_is_below_zero() {
    for args in [
        &["mlp", "--machine", "dgx-h100"][..],
        &["mlp", "--layout", "tp", "--mesh", "4", "--machine", "cpu"],
        &["gpt", "--preset", "tiny", "--layout", "zero3", "--mesh", "4", "--machine", "dgx-h100"],
    ] {
        let (code, out, err) = run(&[&["estimate"], args, &["--format", "json"]].concat());
        assert!(code == 0 && !out.contains(":-0.0"), "{args:?}: {out}{err}");
        let e: Value = serde_json::from_str(&out).unwrap();
        for hidden in e["hidden"].as_object().unwrap().values() {
            assert!(hidden.as_f64().unwrap() >= 1e-9, "{args:?}: {e}");
        }
    }
    let swept = ["sweep", "mlp", "--dim", "batch=100", "--estimate", "--machine", "cpu", "--format", "jsonl"];
    let (code, out, err) = run_in(&folder("no-time-below-zero"), &swept);
    assert!(code == 0 && out.contains("\"exposed_ms\":0.0"), "{out}{err}");
}

#[test]
fn a_text_says_where_time_goes_and_how_sure_it_is() {
    let (code, out, err) = run(GPT);
    assert_eq!(code, 0, "{err}");
    for part in
        ["gpt on 4 devices of DGX H100", "+- 15 %", "matrix products", "MFU", "examples/s", "memory", "fits"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    // Each part of the step has a band, and one line has that of all collectives.
    let (parts, rest) = out.split_once("\n\nMFU").unwrap();
    let parts: Vec<&str> = parts.lines().skip_while(|l| !l.starts_with("step")).skip(1).collect();
    assert!(parts.len() > 3 && parts.iter().all(|l| l.contains("+- 15 %")), "{out}");
    assert!(rest.contains("each time of a collective +- 15 %"), "{out}");
}

#[test]
fn what_if_changes_the_machine() {
    let seconds = |more: &[&str]| json(&[GPT, more].concat())["seconds"].as_f64().unwrap();
    let plain = seconds(&[]);
    assert!(seconds(&["--with", "tier.nvlink.rate=1e9"]) > plain);
    assert!((seconds(&["--slow", "0.5"]) / plain - 2.0).abs() < 1e-9);
    let mut args = GPT.to_vec();
    *args.last_mut().unwrap() = "dgx-a100-80g";
    let (code, _, err) = run(&[&args[..], &["--failures"]].concat());
    assert!(code == 1 && err.contains("no table `failures`"), "{err}");
    let shipped =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../compiler/cost/src/machines/dgx-a100-80g.machine.toml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let file = folder("failures").join("failing.toml");
    std::fs::write(&file, text + "\n[failures]\nhours = 50000\nrestart = 600\ncheckpoint = 30\n").unwrap();
    *args.last_mut().unwrap() = file.to_str().unwrap();
    let e = json(&[&args[..], &["--failures"]].concat());
    assert!(e["goodput"]["share"].as_f64().unwrap() > 0.9, "{e}");
}

#[test]
fn pipelines_have_the_stages_of_a_layout() {
    let args: Vec<&str> = GPT
        .iter()
        .map(|a| if *a == "batch -> data; moments: * -> data" { "batch -> data; microbatches 4" } else { a })
        .collect();
    let e = json(&[&args[..], &["--pipe", "2", "--chunks", "2"]].concat());
    assert_eq!(
        (&e["devices"], &e["pipe"]["stages"], &e["pipe"]["microbatches"]),
        (&8.into(), &2.into(), &4.into())
    );
    assert!(e["pipe"]["bubble"].as_f64().unwrap() > 0.0);
    // It is the estimate of the Plan with these stages.
    let staged = args.iter().map(|a| match *a {
        "batch -> data; microbatches 4" => "batch -> data; layers -> pipe; microbatches 4; chunks 2",
        "data=4" => "pipe=2,data=4",
        other => other,
    });
    let staged: Vec<&str> = staged.collect();
    let own = json(&staged);
    assert_eq!((&own["seconds"], &own["memory"], &own["mesh"]), (&e["seconds"], &e["memory"], &e["mesh"]));
    assert_eq!(e["pipe"]["projected"], false, "{e}");
    // So it has a timeline, as a trace and on a page: that of the same layout.
    let at = folder("estimated-stages");
    let written = |args: &[&str], name: &str| {
        let (trace, page) = (at.join(format!("{name}.json")), at.join(format!("{name}.html")));
        let files = ["--trace", trace.to_str().unwrap(), "--html", page.to_str().unwrap()];
        let (code, _, err) = run(&[args, &files].concat());
        assert_eq!(code, 0, "{err}");
        let page = std::fs::read_to_string(page).unwrap();
        let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Value = serde_json::from_str(data).unwrap();
        (std::fs::read_to_string(trace).unwrap(), data["layouts"][0]["estimate"].clone())
    };
    let (trace, drawn) = written(&[&args[..], &["--pipe", "2", "--chunks", "2"]].concat(), "asked");
    assert_eq!(drawn["seconds"], e["seconds"]);
    assert!(drawn["bars"].as_array().unwrap().len() > 100, "{drawn}");
    let (other, own) = written(&staged, "own");
    assert_eq!(drawn, own);
    // Their texts differ, and with these the name of the Plan.
    let events = |trace: &str| trace.matches("\"dur\":").count();
    assert!(events(&trace) == events(&other) && events(&trace) > 100, "{trace}");
    let other = at.join("other.toml");
    std::fs::write(&other, "attention = \"flash3\"\n").unwrap();
    let foreign = ["--pipe", "2", "--engine", other.to_str().unwrap(), "--trace", "no.json"];
    let (code, _, err) = run_in(&at, &[&args[..], &foreign].concat());
    assert!(code == 1 && err.contains("error[E0531]") && err.contains("projected"), "{err}");
    assert!(!at.join("no.json").exists());
    let (code, _, err) = run(&[&args[..], &["--pipe", "64"]].concat());
    assert!(code == 1 && err.contains("error[E0531]") && err.contains("4 layers"), "{err}");
    let twice =
        ["estimate", "gpt", "--preset", "tiny", "--layout", "pipeline", "--machine", "cpu", "--pipe", "2"];
    let (code, _, err) = run(&twice);
    assert!(code == 1 && err.contains("error[E0531]") && err.contains("`layers -> pipe` already"), "{err}");
}

#[test]
fn mistakes_are_named() {
    let with = |more: &[&str]| run(&[&["estimate", "mlp"], more].concat());
    let (code, _, err) = with(&[]);
    assert!(code == 2 && err.contains("--machine NAME|FILE"), "{err}");
    let (code, _, err) = with(&["--machine", "dgx-h10"]);
    assert!(code == 1 && err.contains("E0515") && err.contains("dgx-h100"), "{err}");
    let (code, _, err) = with(&["--machine", "dgx-h100", "--with", "tier.nvlink.rat=1"]);
    assert!(code == 1 && err.contains("E0531") && err.contains("rate"), "{err}");
    let (code, _, err) = with(&["--machine", "dgx-h100", "--engine", "cudda"]);
    assert!(code == 1 && err.contains("cudda"), "{err}");
    for rate in ["2", "0", "nan", "1e-308"] {
        let (code, _, err) = with(&["--machine", "dgx-h100", "--slow", rate]);
        assert!(code == 2 && err.contains("from 1e-6 to 1"), "{rate}: {err}");
    }
    for change in
        ["device.kernel=1e308", "device.product.issue=1e-308", "device.stream.rates=[[65536, 1e-308]]"]
    {
        let (code, _, err) = with(&["--machine", "cpu", "--with", change]);
        assert!(code == 1 && err.contains("E0531") && err.contains(" is expected"), "{change}: {err}");
    }
}

#[test]
fn foresight_reads_files_of_runs() {
    let at = folder("foresight");
    let text = "version = 1\n\n[[run]]\nid = \"one\"\nmodel = \"gpt\"\npreset = \"small\"\ndims = { batch = 16 }\nprecision = \"bf16\"\n\
        machine = \"dgx-h200\"\nengine = \"cuda\"\nseconds = SECONDS\n";
    let file = at.join("runs.toml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, text.replace("SECONDS", "0.0363")).unwrap();
    let found = json(&["selftest", "foresight", "--runs", path]);
    assert_eq!((&found["ok"], &found["files"][0]["rows"][0]["id"]), (&true.into(), &"one".into()));
    std::fs::write(&file, text.replace("SECONDS", "0.02")).unwrap();
    let (code, out, _) = run(&["selftest", "foresight", "--runs", path]);
    assert!(code == 1 && out.contains("beyond the limits"), "{out}");
    std::fs::write(&file, text.replace("seconds =", "secondss =")).unwrap();
    let (code, _, err) = run(&["selftest", "foresight", "--runs", path]);
    assert!(code == 1 && err.contains("E0531") && err.contains("secondss"), "{err}");
}

#[test]
fn what_a_source_leaves_open_is_chosen() {
    let file = folder("open").join("runs.toml");
    let path = file.to_str().unwrap();
    let of = |open: &str| {
        let text = format!(
            "version = 1\n[[run]]\nid = \"one\"\nmodel = \"gpt\"\npreset = \"tiny\"\ndims = {{ batch = 64 }}\nprecision = \"bf16\"\n\
             machine = \"dgx-h100\"\nengine = \"cuda\"\nseconds = 1.0\nopen = [\"{open}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
        run(&["selftest", "foresight", "--runs", path, "--format", "json"])
    };
    // Parts and recomputation cost time where all fits: neither is chosen.
    for open in ["microbatches", "recompute"] {
        let (_, out, err) = of(open);
        let found: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
        assert_eq!(found["files"][0]["rows"][0]["chosen"], serde_json::json!([]), "{open}");
    }
    for (open, why) in [
        ("chunk", "microbatches, recompute, schedule"),
        ("chunks", "has no `pipe`"),
        ("attention", "`cuda` has no facts"),
    ] {
        let (code, _, err) = of(open);
        assert!(code == 1 && err.contains(&format!("`{open}`")) && err.contains(why), "{err}");
    }
    // Of a pipeline and of another system the keys that make it fastest: fewer bubbles, and attention that is fused.
    let text = "version = 1\n[engine.other]\n[[run]]\nid = \"one\"\nmodel = \"gpt\"\npreset = \"tiny\"\ndims = { batch = 64, seq = 128 }\n\
                layout = \"microbatches 8\"\npipe = { stages = 2 }\nprecision = \"bf16\"\nmachine = \"dgx-h100\"\n\
                engine = \"other\"\nseconds = 1.0\nopen = [\"schedule\", \"attention\", \"fusion\"]\n";
    std::fs::write(&file, text).unwrap();
    let (_, out, err) = run(&["selftest", "foresight", "--runs", path, "--format", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let row = &found["files"][0]["rows"][0];
    let chosen = row["chosen"].to_string();
    assert!(
        chosen.contains("zb_h1") && chosen.contains("attention = ") && !chosen.contains("fusion"),
        "{row}"
    );
}

#[test]
fn an_estimate_above_the_peak_is_an_error() {
    let shipped =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../compiler/cost/src/machines/dgx-h100.machine.toml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let file = folder("above-the-peak").join("fast.toml");
    // Attention a thousand times as fast as tensor cores are, in a model of long sequences and little else.
    std::fs::write(&file, text.replace("370e12", "990e15").replace("300e12", "990e15")).unwrap();
    let mut args = vec!["estimate", "llama", "--precision", "bf16", "--machine", file.to_str().unwrap()];
    for size in ["layers=8", "d_ff=1024", "vocab=1024", "seq=65536", "batch=1"] {
        args.extend(["--dim", size]);
    }
    let (code, out, err) = run(&args);
    assert!(code == 1 && err.contains("E0531") && err.contains("faster than the peak"), "{out}{err}");
}

#[test]
fn sizes_of_an_axis_are_rows() {
    let (code, out, err) = run(&[GPT, &["--scale", "data=2..8", "--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let rows: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let devices: Vec<u64> = rows.iter().map(|r| r["devices"].as_u64().unwrap()).collect();
    assert_eq!(devices, [2, 4, 8]);
    // Each is the whole estimate, as the command gives it for that mesh.
    let alone: Vec<&str> = GPT.iter().map(|a| if *a == "data=4" { "data=8" } else { a }).collect();
    let mut row = rows[2].as_object().unwrap().clone();
    assert_eq!((row.remove("axis"), row.remove("size")), (Some("data".into()), Some(8.into())));
    let each = |r: &Value| r["examples_per_second"].as_f64().unwrap() / r["devices"].as_f64().unwrap();
    assert_eq!(row.remove("efficiency").unwrap().as_f64(), Some(each(&rows[2]) / each(&rows[0])));
    assert_eq!(Value::from(row), json(&alone));
    let (_, out, _) = run(&[GPT, &["--scale", "data=2..8"]].concat());
    assert_eq!(out.matches("+- 15 %").count(), 3, "{out}");
    assert!(out.contains("data sheets, not calibrated"), "{out}");
    let mut failing = GPT.to_vec();
    *failing.last_mut().unwrap() = "dgx-a100-80g";
    let (code, _, err) = run(&[&failing[..], &["--scale", "data=2..8", "--failures"]].concat());
    assert!(code == 1 && err.contains("no table `failures`"), "{err}");
    failing = GPT.to_vec();
    failing.extend(["--scale", "data=2..8", "--failures"]);
    let (_, out, err) = run(&failing);
    assert!(out.contains("goodput"), "{out}{err}");
    let out = run(&[&failing[..], &["--format", "json"]].concat()).1;
    let shares: Vec<f64> = out
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["goodput"]["share"].as_f64().unwrap())
        .collect();
    assert!(shares.len() == 3 && shares.is_sorted_by(|a, b| a > b), "{shares:?}");
    let weak = run(&[GPT, &["--scale", "data=2..8", "--weak", "--format", "json"]].concat()).1;
    let weak: Vec<Value> = weak.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // With as many examples on each device a step of more devices is no faster.
    assert!(weak[2]["seconds"].as_f64() >= weak[0]["seconds"].as_f64());
    let (code, _, err) = run(&[GPT, &["--scale", "rows=2..8"]].concat());
    assert!(code == 2 && err.contains("--scale"), "{err}");
}

#[test]
fn a_sweep_of_estimates_runs_nothing() {
    let at = folder("estimated-sweep");
    let grid =
        ["sweep", "mlp", "--layout", "dp,tp", "--mesh", "2,4", "--dim", "batch=100,400", "--seeds", "2"];
    let more = ["--estimate", "--machine", "dgx-h100", "--sort", "estimated_ms", "--format", "jsonl"];
    let (code, out, err) = run_in(&at, &[&grid[..], &more].concat());
    assert_eq!(code, 0, "{err}");
    let rows: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(rows.len(), 16);
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(rows.is_sorted_by_key(|r| of(r, "estimated_ms")), "{out}");
    for row in &rows {
        assert!(
            of(row, "exposed_ms") <= of(row, "estimated_ms") && of(row, "estimated_peak_bytes") > 0.0,
            "{row}"
        );
        assert!(
            row["fits"] == "yes" && row["state"] == "planned" && row.get("train_loss").is_none(),
            "{row}"
        );
    }
    // The same as the command for one of them has.
    let one = rows.iter().find(|r| r["layout"] == "dp" && r["mesh"] == "4" && r["batch"] == 400).unwrap();
    let alone = json(&[
        "estimate",
        "mlp",
        "--layout",
        "dp",
        "--mesh",
        "4",
        "--dim",
        "batch=400",
        "--machine",
        "dgx-h100",
    ]);
    assert_eq!(of(one, "estimated_ms"), 1e3 * alone["seconds"].as_f64().unwrap());
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0, "nothing is written");
    // What does not compile is left out, and said.
    let wrong = [
        "sweep",
        "mlp",
        "--layout",
        "dp",
        "--layout",
        "batch, hidden -> r",
        "--mesh",
        "2",
        "--estimate",
        "--machine",
        "cpu",
    ];
    let (code, out, err) = run_in(&at, &wrong);
    assert!(
        code == 0 && out.contains("skipped") && err.contains("is left out") && err.contains("error[E"),
        "{out}{err}"
    );
    let (code, _, err) = run_in(&at, &["sweep", "mlp", "--layout", "dp", "--mesh", "2", "--estimate"]);
    assert!(code == 2 && err.contains("--machine NAME|FILE"), "{err}");
}

#[test]
fn comparisons_and_runs_have_estimates() {
    let compared = json(&["compare", "mlp", "--layout", "dp,tp", "--mesh", "4", "--machine", "dgx-h100"]);
    for variant in compared["variants"].as_array().unwrap() {
        assert!(variant["estimated_ms"].as_f64().unwrap() > 0.0, "{variant}");
        assert_eq!((&variant["estimate_error"], &variant["estimate_ratio"]), (&0.15.into(), &Value::Null));
    }
    let both = ["compare", "mlp", "--layout", "dp,tp", "--mesh", "2", "--machine", "cpu"];
    let steps = ["--measure", "--steps", "3", "--warmup", "1", "--cores", "2"];
    let compared = json(&[&both[..], &steps].concat());
    for v in compared["variants"].as_array().unwrap() {
        let of = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{v}"));
        let ratio = of(&v["estimated_ms"]) / of(&v["measured"]["median_ms"]);
        assert_eq!(of(&v["estimate_ratio"]), ratio, "{v}");
    }
    let text = run(&both).1;
    assert!(text.contains("estimated ms") && text.matches("15 %").count() == 2, "{text}");
    let at = folder("estimated-run");
    let args = ["train", "mnist_mlp", "--steps", "40", "--no-eval", "--machine", "cpu", "--run", "runs/r"];
    let (code, _, err) = run_in(&at, &args);
    assert_eq!(code, 0, "{err}");
    let costs: Value =
        serde_json::from_str(&std::fs::read_to_string(at.join("runs/r/costs.json")).unwrap()).unwrap();
    assert_eq!(costs["estimate"]["machine"], "cpu");
    let (code, out, err) = run_in(&at, &["runs", "ls", "--format", "jsonl"]);
    assert_eq!(code, 0, "{err}");
    let row: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let seconds = costs["estimate"]["seconds"].as_f64().unwrap();
    assert!((row["estimated_ms"].as_f64().unwrap() - 1e3 * seconds).abs() < 1e-9, "{row}");
    assert!(row["estimate_ratio"].as_f64().unwrap() > 0.0, "{row}");
    assert_eq!(row["estimate_error"], costs["estimate"]["error"], "{row}");
    let (_, out, _) = run_in(&at, &["runs", "ls"]);
    assert!(out.contains("+-") && out.contains("15 %"), "{out}");
}

#[test]
fn a_sweep_has_the_estimates_of_its_runs() {
    let at = folder("sweep-with-estimates");
    let of = "sweep mnist_mlp --layout dp,tp --mesh 2 --steps 3 --run r --format jsonl";
    let of: Vec<&str> = of.split(' ').collect();
    let machine = ["--machine", "cpu", "--with", "device.kernel=1e-3"];
    for asked in [[&of[..], &machine].concat(), [&["sweep", "r", "--format", "jsonl"][..]].concat()] {
        let (code, out, err) = run_in(&at, &asked);
        assert_eq!(code, 0, "{err}");
        let rows: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(rows.len(), 2, "{out}");
        for row in &rows {
            // A kernel a millisecond: the change of the machine counts.
            assert!(row["estimated_ms"].as_f64().unwrap() > 10.0, "{row}");
            assert!(row["estimate_ratio"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let (code, _, err) = run_in(&at, &["sweep", "r", "--machine", "dgx-h100"]);
    assert!(code == 2 && err.contains("`--machine=cpu`"), "{err}");
    let (code, out, err) =
        run_in(&at, &[&of[..6], &["--steps", "3", "--run", "s", "--", "--machine", "cpu"]].concat());
    assert!(code == 0, "{out}{err}");
}

#[test]
fn an_explanation_has_the_time_of_each_collective() {
    let args = [
        "explain",
        "gpt",
        "--preset",
        "tiny",
        "--layout",
        "batch -> data",
        "--mesh",
        "data=4",
        "--machine",
        "dgx-h100",
    ];
    let report = json(&args);
    assert!(report["estimate"]["seconds"].as_f64().unwrap() > 0.0);
    for c in report["collectives"].as_array().unwrap() {
        assert!(c["seconds"].as_f64().unwrap() >= c["exposed_seconds"].as_f64().unwrap() - 1e-12, "{c}");
        assert_eq!(c["estimate_error"], 0.15, "{c}");
    }
    let text = run(&args).1;
    assert!(text.contains("estimate") && text.contains("waiting for collectives"), "{text}");
    // Each time has its band: that of the step, and those of its collectives.
    let rows: Vec<&str> = text.lines().filter(|l| l.contains("all-reduce data,")).collect();
    assert!(!rows.is_empty() && rows.iter().all(|l| l.contains("s +- 15 % ")), "{text}");
    // A machine whose collectives were measured has their own.
    let file = folder("band-of-collectives").join("here.toml");
    let calibrated = "[errors]\ncollective = 0.04\n[calibration]\ndate = \"2026-11-29\"\non = \"here\"\nplans = 3\n\
                      mean_error = 0.02\nmax_error = 0.02\n";
    std::fs::write(&file, run(&["machines", "dgx-h100"]).1 + calibrated).unwrap();
    let mut here = args.to_vec();
    here[9] = file.to_str().unwrap();
    let text = run(&here).1;
    assert!(text.contains("s +- 4 % ") && !text.contains("15 %"), "{text}");
}

/// The case of the machine files' `[failures]`: a failure every 3.1 hours, and more than nine tenths of the time left.
#[test]
fn sixteen_thousand_devices_make_progress_between_failures() {
    let of =
        ["estimate", "gpt", "--preset", "tiny", "--dim", "batch=16384", "--layout", "dp", "--mesh", "16384"];
    let more = ["--machine", "dgx-h100", "--precision", "bf16", "--failures"];
    let e = json(&[&of[..], &more].concat());
    let number = |key: &str| e["goodput"][key].as_f64().unwrap();
    assert!((number("between") / 3600.0 - 3.1).abs() < 0.01, "{e}");
    assert!((0.9..0.93).contains(&number("share")), "{e}");
    let text = run(&[&of[..], &more].concat()).1;
    assert!(text.contains("goodput 91.") && text.contains("a failure every 3 h 06 min"), "{text}");
}

/// A gather whose steps grow with the logarithm of the nodes, by a line of a file. No shipped machine has one: NCCL's is for one
/// device a node.
#[test]
fn a_logarithmic_gather_is_priced_by_its_line() {
    let file = folder("logarithmic").join("here.toml");
    let shipped = run(&["machines", "dgx-h100"]).1;
    // One device of each node, on the links between nodes.
    let (before, rail) = shipped.split_once("name = \"rail\"").unwrap();
    let (tier, lines) = rail.split_once("[[tier.line]]").unwrap();
    let pat = "[[tier.line]]\nname = \"pat\"\nops = [\"all_gather\", \"reduce_scatter\"]\nlatency = 60e-6\nrate = 20e9\nlog = true\n\n";
    std::fs::write(&file, format!("{before}name = \"rail\"{tier}{pat}[[tier.line]]{lines}")).unwrap();
    let layout = "batch -> data; params: * -> data";
    let of = ["estimate", "mlp", "--layout", layout, "--mesh", "data=32,other=8", "--dim", "batch=256"];
    let e = json(&[&of[..], &["--machine", file.to_str().unwrap()]].concat());
    let hop = 14e-6;
    let mut seen = 0;
    for c in e["collectives"].as_array().unwrap().iter().filter(|c| c["op"] != "all_reduce") {
        let number = |key: &str| c[key].as_f64().unwrap();
        assert_eq!((&c["algorithm"], number("nodes")), (&"rail pat".into(), 32.0), "{c}");
        let once = 60e-6 + 5.0 * hop + 31.0 / 32.0 * number("bytes") / 20e9;
        assert!((number("seconds") / number("times") / once - 1.0).abs() < 1e-9, "{c}: {once}");
        seen += 1;
    }
    assert!(seen > 1, "{e}");
}

#[test]
fn an_estimated_timeline_is_a_trace() {
    let file = folder("estimated-trace").join("t.json");
    let (code, _, err) = run(&[GPT, &["--trace", file.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{err}");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let end = events.iter().filter_map(|e| Some(e["ts"].as_f64()? + e["dur"].as_f64()?)).fold(0.0, f64::max);
    let seconds = json(GPT)["seconds"].as_f64().unwrap();
    assert!((end / 1e6 / seconds - 1.0).abs() < 0.05, "{end} microseconds of {seconds} seconds");
    assert!(events.iter().any(|e| e["cat"] == "in flight"), "no collective in flight");
}

/// A file knows the engine that was measured. Nothing has measured the collectives of another one.
#[test]
fn an_engine_that_was_not_measured_has_a_wider_band() {
    let at = folder("engine-of-a-machine");
    let (_, cpu, _) = run(&["machines", "cpu"]);
    let measured = "[errors]\nmatmul = 0.02\n[calibration]\ndate = \"2026-11-29\"\non = \"four ranks\"\nengine = \"mpi\"\nplans = 3\nmean_error = 0.02\nmax_error = 0.02\n";
    std::fs::write(at.join("ranks.toml"), cpu + "\n" + measured).unwrap();
    let of = |more: &[&str]| {
        let asked = ["estimate", "mlp", "--layout", "dp", "--mesh", "4", "--machine", "ranks.toml"];
        let (code, out, err) = run_in(&at, &[&asked[..], more].concat());
        assert_eq!(code, 0, "{err}");
        out
    };
    let own = of(&[]);
    assert!(
        own.contains("with mpi") && own.contains("+- 2 % (calibrated on four ranks with mpi, 3 plans)"),
        "{own}"
    );
    let error = |engine: &str| {
        let found: Value = serde_json::from_str(&of(&["--engine", engine, "--format", "json"])).unwrap();
        found["error"].as_f64().unwrap()
    };
    assert!(
        (error("mpi") - 0.02).abs() < 1e-9 && error("threads") > 0.021,
        "{} {}",
        error("mpi"),
        error("threads")
    );
}

/// What there is to say of a size is said once, and of the mesh that was given only if it is a row.
#[test]
fn sizes_have_their_own_warnings() {
    for mesh in ["data=8", "data=32"] {
        let asked = ["estimate", "mlp", "--dim", "batch=4", "--layout", "batch -> data", "--mesh", mesh];
        let (_, _, err) = run(&[&asked[..], &["--machine", "dgx-h100", "--scale", "data=8..16"]].concat());
        assert_eq!(err.matches("warning[E0312]").count(), 2, "{mesh}: {err}");
    }
}
