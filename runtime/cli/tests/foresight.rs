//! `selftest foresight` on files of runs, and the options of `estimate` that describe other systems and pipelines.

use crate::support::{folder, run};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(&[args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// A file of runs of GPT small on an H200, by their batches and seconds.
fn runs(path: &str, engine: &str, runs: &[(usize, f64)]) {
    let one = |(batch, seconds): &(usize, f64)| {
        format!(
            "[[run]]\nid = \"{batch}\"\nmodel = \"gpt\"\npreset = \"small\"\ndims = {{ batch = {batch} }}\nprecision = \"bf16\"\n\
             machine = \"dgx-h200\"\nengine = \"{engine}\"\nseconds = {seconds:e}\n"
        )
    };
    let all: String = runs.iter().map(one).collect();
    std::fs::write(path, format!("version = 1\n[engine.other]\nattention = \"flash2\"\n{all}")).unwrap();
}

/// What the selftest finds in a file: whether it is content, and all that it says.
fn found(path: &str) -> (bool, Value) {
    let (code, out, err) = run(&["selftest", "foresight", "--runs", path, "--format", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    assert_eq!(found["ok"], code == 0, "{found}");
    (code == 0, found)
}

fn of_rows(found: &Value, key: &str) -> Vec<f64> {
    let rows = found["files"][0]["rows"].as_array().unwrap();
    rows.iter().map(|r| r[key].as_f64().unwrap_or_else(|| panic!("{key}: {r}"))).collect()
}

#[test]
fn a_bias_and_the_order_of_runs_are_told() {
    let file = folder("foresight-order").join("runs.toml");
    let path = file.to_str().unwrap();
    let batches = [2, 8, 32];
    runs(path, "cuda", &batches.map(|batch| (batch, 1.0)));
    let (ok, first) = found(path);
    assert!(!ok, "estimates of milliseconds for runs of a second");
    let (estimated, rates) = (of_rows(&first, "estimated"), of_rows(&first, "flops_per_device"));
    assert!(rates.is_sorted() && rates[0] < rates[2], "more examples are faster: {rates:?}");
    // As estimated: no error, and all in order.
    let with = |factors: [f64; 3]| {
        let of = |k: usize| (batches[k], estimated[k] * factors[k]);
        runs(path, "cuda", &[0, 1, 2].map(of));
        found(path)
    };
    let summary = |found: &Value, key: &str| found["summary"][key].as_f64().unwrap();
    let (ok, exact) = with([1.0; 3]);
    assert!(ok && summary(&exact, "max") < 1e-12, "{exact}");
    assert_eq!((summary(&exact, "tau"), &exact["summary"]["refused"]), (1.0, &0.into()));
    // All a twentieth longer than estimated: the errors have one sign.
    let (ok, longer) = with([1.0 / 0.95; 3]);
    assert!(ok, "{longer}");
    for (key, expected) in [("mean", 0.05), ("max", 0.05), ("bias", -0.05), ("tau", 1.0)] {
        assert!((summary(&longer, key) - expected).abs() < 1e-9, "{key}: {longer}");
    }
    // One longer and one shorter: no bias.
    let (_, both) = with([1.0 / 1.05, 1.0, 1.0 / 0.95]);
    assert!(summary(&both, "bias").abs() < 1e-9 && summary(&both, "mean") > 0.03, "{both}");
    // The second and the third run change places: of three pairs one is out of order.
    let (_, turned) = with([1.0, rates[1] / rates[2], rates[2] / rates[1]]);
    assert!((summary(&turned, "tau") - 1.0 / 3.0).abs() < 1e-9, "{turned}");
    // A mean of more than a tenth fails, and so does a single error of more than a fifth.
    assert!(!with([1.0 / 1.12; 3]).0 && !with([1.0, 1.0, 1.0 / 1.25]).0);
    assert!(with([1.0, 1.0, 1.0 / 1.19]).0);
}

#[test]
fn published_numbers_have_a_range() {
    let file = folder("foresight-range").join("runs.toml");
    let path = file.to_str().unwrap();
    for seconds in [0.0, -1.0, 1e-308, f64::NAN, f64::INFINITY] {
        let run_of = "version = 1\n[[run]]\nid = \"a\"\nmodel = \"gpt\"\npreset = \"tiny\"\nprecision = \"bf16\"\n\
             machine = \"dgx-h200\"\nengine = \"cuda\"\n";
        let number = toml_float(seconds);
        let of_collective = format!(
            "version = 1\n[[collective]]\nop = \"all_reduce\"\nbytes = 8\ndevices = 2\n\
             machine = \"dgx-h200\"\nseconds = {number}\n"
        );
        let keys = ["seconds", "tokens_per_second_per_device", "memory_gib"];
        let runs = keys.map(|key| (key, format!("{run_of}{key} = {number}\n")));
        for (key, text) in runs.into_iter().chain([("seconds", of_collective)]) {
            std::fs::write(path, text).unwrap();
            let (code, _, err) = run(&["selftest", "foresight", "--runs", path]);
            assert!(
                code == 1 && err.contains(&format!("`{key}` is ")) && err.contains("between 1e-9"),
                "{err}"
            );
        }
    }
}

/// A number as TOML writes it.
fn toml_float(v: f64) -> String {
    if v.is_finite() { format!("{v:e}") } else { v.to_string().to_lowercase() }
}

#[test]
fn a_run_that_exists_is_not_refused() {
    let file = folder("foresight-refused").join("runs.toml");
    let path = file.to_str().unwrap();
    let many = 8192;
    runs(path, "cuda", &[(many, 1.0)]);
    let seconds = of_rows(&found(path).1, "estimated")[0];
    // The time is right, and the examples do not fit: this run cannot have been.
    runs(path, "cuda", &[(many, seconds)]);
    let (ok, said) = found(path);
    assert!(!ok && said["summary"]["max"].as_f64().unwrap() < 1e-9, "{said}");
    assert_eq!(
        (&said["summary"]["refused"], &said["files"][0]["rows"][0]["refused"]),
        (&1.into(), &true.into())
    );
    let (_, text, _) = run(&["selftest", "foresight", "--runs", path]);
    assert!(text.contains("said not to fit") && text.contains("false refusals 1"), "{text}");
    // Of another system nothing says for certain that it does not fit.
    runs(path, "other", &[(many, 1.0)]);
    let (_, said) = found(path);
    assert_eq!(said["summary"]["refused"], 0, "{said}");
}

const GPT: &[&str] = &["estimate", "gpt", "--preset", "tiny", "--precision", "bf16", "--machine", "dgx-h100"];

#[test]
fn schedules_and_ends_of_a_pipeline_differ() {
    let sizes = ["--dim", "batch=64", "--dim", "layers=8", "--layout", "microbatches 8"];
    let of = |more: &[&str]| json(&[GPT, &sizes, &["--pipe", "4"], more].concat());
    let number = |e: &Value, path: &str| e.pointer(path).and_then(Value::as_f64).unwrap();
    let [usual, gpipe, zero] = ["1f1b", "gpipe", "zb_h1"].map(|schedule| {
        let e = of(&["--schedule", schedule]);
        assert_eq!((&e["pipe"]["schedule"], &e["pipe"]["projected"]), (&schedule.into(), &false.into()));
        e
    });
    // Gradients of weights fill a part of the bubble; all forward passes first keep all microbatches.
    let bubble = |e: &Value| number(e, "/breakdown/bubble");
    assert!(bubble(&zero) < bubble(&usual) && bubble(&usual) <= bubble(&gpipe) * 1.001, "{usual} {zero}");
    assert!(number(&gpipe, "/memory/residuals") > number(&usual, "/memory/residuals"), "{gpipe} {usual}");
    // Embedding and logits count as a layer each: 1, 3, 3, 1 layers in place of 2, 2, 2, 2.
    let ends = of(&["--ends", "1"]);
    assert_ne!(ends["seconds"], usual["seconds"]);
    let written = "layers -> pipe; microbatches 8; stages 1, 3, 3, 1";
    let own = json(&[GPT, &sizes[..4], &["--layout", written, "--mesh", "pipe=4"]].concat());
    assert_eq!((&own["seconds"], &own["memory"]), (&ends["seconds"], &ends["memory"]));
    for wrong in [["--schedule", "2f2b"], ["--ends", "2"]] {
        let (code, _, err) = run(&[GPT, &sizes, &["--pipe", "4"], &wrong].concat());
        assert!(code == 2 && err.contains(wrong[1]), "{err}");
    }
}

#[test]
fn facts_about_another_engine_come_from_a_file() {
    let file = folder("facts").join("engine.toml");
    let path = file.to_str().unwrap();
    let sizes = ["--dim", "seq=4096", "--dim", "places=4096"];
    let of = |facts: &str| {
        std::fs::write(&file, facts).unwrap();
        run(&[GPT, &sizes, &["--engine", path, "--format", "json"]].concat())
    };
    let estimated = |facts: &str| -> Value {
        let (code, out, err) = of(facts);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let [unfused, flash2, flash3] =
        ["unfused", "flash2", "flash3"].map(|a| estimated(&format!("attention = \"{a}\"\n")));
    let seconds = |e: &Value| e["seconds"].as_f64().unwrap();
    assert_eq!(flash2["engine"], "foreign");
    assert!(
        seconds(&flash3) < seconds(&flash2) && seconds(&flash2) < seconds(&unfused),
        "{unfused} {flash2}"
    );
    let eager = estimated("attention = \"flash2\"\nfusion = \"eager\"\n");
    assert!(seconds(&eager) > seconds(&flash2), "a kernel for each op: {eager}");
    // What no estimate reads is told, and changes nothing.
    let facts = "attention = \"flash2\"\nregather = false\nlogit_bytes = 14\n";
    let (_, out, err) = of(facts);
    assert!(err.contains("`regather`, `logit_bytes` are without effect"), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["seconds"], flash2["seconds"]);
    assert!(!of("attention = \"flash2\"\n").2.contains("without effect"));
    let runs = folder("facts-of-runs").join("runs.toml");
    let text = format!("version = 1\n[engine.other]\n{facts}[engine.silent]\n");
    std::fs::write(&runs, text).unwrap();
    let (_, _, err) = run(&["selftest", "foresight", "--runs", runs.to_str().unwrap()]);
    assert!(
        err.contains("engine `other`: `regather`, `logit_bytes` are") && !err.contains("silent"),
        "{err}"
    );
    assert!(!run(&["selftest", "foresight"]).2.contains("without effect"), "the shipped files state none");
    let (code, _, err) = of("atention = \"flash2\"\n");
    assert!(code == 1 && err.contains("E0531") && err.contains("atention"), "{err}");
}

/// Each command that estimates names the rate that a file lacks, once, and what stands for it.
#[test]
fn a_rate_that_a_machine_file_lacks_is_named() {
    let at = folder("missing-rate");
    let text = meshwright_cost::shipped_machines::find("dgx-h100").unwrap();
    let (before, after) = text.split_once("[device.matrix.f32]").unwrap();
    let rest = after.split_once("[device.matrix.f64]").unwrap().1;
    let file = at.join("mine.toml");
    std::fs::write(&file, format!("{before}[device.matrix.f64]{rest}")).unwrap();
    let of = |command: &[&str], precision: &str, json: &[&str]| {
        let file = file.to_str().unwrap();
        let gpt = ["gpt", "--preset", "tiny", "--precision", precision, "--machine", file];
        let (code, out, err) = run(&[command, &gpt, json].concat());
        assert_eq!(code, 0, "{err}");
        (out, err)
    };
    let note = "the file of DGX H100 80 GB has no rate of `f32` products: they are priced at 0.135 of the rate of `tf32`, as on dgx-h100; add `[device.matrix.f32]` with `peak` and `best` to the file";
    let search = ["search", "--devices", "2", "--top", "1"];
    let [estimate, explain] = [["estimate"], ["explain"]];
    for command in [&estimate[..], &explain, &search] {
        assert_eq!(of(command, "f32", &[]).1.matches(note).count(), 1, "{command:?}");
        assert!(!of(command, "bf16", &[]).1.contains("has no rate"), "{command:?}");
    }
    let (out, err) = of(&estimate, "f32", &["--format", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let rate = &found["assumed_rates"][0];
    assert_eq!(
        (&rate["dtype"], &rate["taken"], &rate["as_on"]),
        (&"f32".into(), &"tf32".into(), &"dgx-h100".into())
    );
    assert!(err.contains(&note.replace('"', "")), "{err}");
    // The same as with the rate itself, which is that of the shipped file.
    let shipped = ["estimate", "gpt", "--preset", "tiny", "--precision", "f32", "--machine", "dgx-h100"];
    let shipped = json(&shipped);
    let ratio =
        found["breakdown"]["matmul"].as_f64().unwrap() / shipped["breakdown"]["matmul"].as_f64().unwrap();
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
    assert_eq!(shipped["assumed_rates"].as_array().unwrap().len(), 0);
}
