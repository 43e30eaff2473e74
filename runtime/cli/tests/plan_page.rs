//! `explain --html`: what the file has, against what `explain` and `compare` print; and what is refused, with a page or without.

use crate::support::{command, folder, run, run_in, said};
use serde_json::{Value, json};
use std::path::Path;

const DP: &str = "batch -> r";
const BOTH: &str = "batch -> r; hidden1 -> c";
const MESH: [&str; 3] = ["mnist_mlp", "--mesh", "r=2,c=2"];

/// What the page draws.
fn drawn(at: &Path, name: &str) -> Value {
    let page = std::fs::read_to_string(at.join(name)).unwrap();
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn answer(at: &Path, args: &[&str]) -> Value {
    let (code, out, err) = run_in(at, &[args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

/// The launches of a page are those that `explain --emit device` prints, and their sums those of the report.
#[test]
fn a_page_has_the_launches_of_a_device() {
    let at = folder("plan_page_launches");
    let model = [
        "gpt",
        "--preset",
        "tiny",
        "--dim",
        "layers=2",
        "--precision",
        "bf16",
        "--layout",
        "batch -> a",
        "--mesh",
        "a=2",
    ];
    for device in ["cpu", "cuda"] {
        let device = ["--device", device];
        let (code, _, err) =
            run_in(&at, &[&["explain"], &model[..], &device, &["--html", "launches.html"]].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        let page = drawn(&at, "launches.html")["layouts"][0]["launches"].clone();
        let plan = answer(&at, &[&["explain"], &model[..], &device, &["--emit", "device"]].concat());
        assert_eq!((&page["totals"], &page["device"]), (&plan["totals"], &plan["target"]));
        let all = plan["launches"].as_array().unwrap();
        let rows = page["launches"].as_array().unwrap();
        assert!(rows.len() > 60, "{}", rows.len());
        for row in rows {
            let launch = &all[row["id"].as_u64().unwrap() as usize];
            for key in ["kind", "read", "written", "flops"] {
                assert_eq!(row[key], launch[key], "{row}");
            }
        }
        let kinds = |kind: &str| rows.iter().filter(|r| r["kind"] == kind).count();
        assert_eq!(kinds("loop"), 2);
        let kernels = |r: &&Value| r["kind"] != "loop" && r["kind"] != "burn" && r["depth"] == 1;
        assert!(rows.iter().filter(kernels).all(|r| r["times"] == 2));
    }
    let (code, _, err) =
        run_in(&at, &[&["explain"], &model[..], &["--device", "cpu", "--why", "loss"]].concat());
    assert_eq!(code, 2, "{err}");
}

#[test]
fn a_page_has_what_explain_and_compare_say() {
    let at = folder("plan_page");
    let layouts = ["--layout", DP, "--layout", BOTH];
    let html = ["--html", "plan.html"];
    let (code, out, err) = run_in(&at, &[&["explain"], &MESH[..], &layouts, &html].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("wrote plan.html: 2 layouts, "), "{out}");
    let data = drawn(&at, "plan.html");
    assert_eq!((&data["model"], &data["program"]), (&json!("mnist"), &json!("train")));
    for (view, layout) in data["layouts"].as_array().unwrap().iter().zip([DP, BOTH]) {
        let report = answer(&at, &[&["explain"], &MESH[..], &["--layout", layout]].concat());
        assert_eq!(view["name"], layout);
        assert_eq!(view["per_device"], report["per_device"]);
        assert_eq!(view["totals"], report["totals"]);
        // The rules that collectives come from can be read, each by itself though they stand in one line.
        let rules: Vec<(&Value, &Value)> =
            view["rules"].as_array().unwrap().iter().map(|r| (&r["number"], &r["text"])).collect();
        let told: Vec<&str> = layout.split("; ").collect();
        assert_eq!(rules.len(), told.len());
        for (number, text) in rules {
            assert_eq!(text, told[number.as_u64().unwrap() as usize - 1]);
        }
    }
    let compared = answer(&at, &[&["compare"], &MESH[..], &layouts].concat());
    assert_eq!(data["differences"], compared["differences"]);
    assert!(!data["differences"][0]["changes"].as_array().unwrap().is_empty());
    // Another form of the same words, and another program.
    let eval = ["--program", "eval", "--html", "eval.html"];
    let said = answer(&at, &[&["explain"], &MESH[..], &eval].concat());
    let size = std::fs::metadata(at.join("eval.html")).unwrap().len();
    assert_eq!(said, json!({ "file": "eval.html", "bytes": size, "layouts": 1 }));
    assert_eq!(drawn(&at, "eval.html")["program"], "eval");
}

#[test]
fn a_page_that_cannot_be_made_is_not_written() {
    let at = folder("no_plan_page");
    let explain = |more: &[&str]| run_in(&at, &[&["explain"], &MESH[..], more].concat());
    let (code, out, err) = explain(&["--layout", DP, "--layout", BOTH]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("--html") && err.contains("compare"), "{err}");
    for other in
        [&["--all"][..], &["--emit", "plan"], &["--why", "h1"], &["--phase", "update"], &["--match", "h*"]]
    {
        let (code, _, err) = explain(&[&["--html", "plan.html"], other].concat());
        assert_eq!(code, 2, "{other:?}: {err}");
    }
    let (code, _, err) = explain(&["--layout", DP, "--layout", "rowz -> c", "--html", "plan.html"]);
    assert_eq!(code, 1);
    assert!(err.contains("E0302") && err.contains("rowz"), "{err}");
    for (file, why) in [
        ("nowhere/plan.html", "there is no folder `nowhere`"),
        ("nowhere/deeper/", "there is no folder `nowhere/deeper`, and it cannot be made"),
    ] {
        let (code, _, err) = explain(&["--html", file]);
        assert!(code == 1 && err.contains("E0516") && err.contains(file) && err.contains(why), "{err}");
    }
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
}

#[test]
fn a_page_of_an_estimate_has_its_timeline() {
    let at = folder("estimated_page");
    let args = [&["estimate"], &MESH[..], &["--layout", DP, "--machine", "dgx-h100"]].concat();
    let (code, out, err) = run_in(&at, &[&args[..], &["--html", "estimate.html"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("MFU"), "{out}");
    let found = answer(&at, &args);
    let view = &drawn(&at, "estimate.html")["layouts"][0];
    let drawn = &view["estimate"];
    assert_eq!((&view["name"], &drawn["seconds"]), (&json!(DP), &found["seconds"]));
    assert_eq!(drawn["memory"][0], found["memory"]["device_bytes"]);
    assert!(drawn["band"].as_str().unwrap().starts_with("+- 15 %"), "{drawn}");
    let bars: Vec<(usize, u8, f64, f64)> = serde_json::from_value(drawn["bars"].clone()).unwrap();
    let end = bars.iter().map(|b| b.3).fold(0.0, f64::max);
    // A step ends with the last kernel; what waits for the slowest device comes after it.
    assert!(end <= found["seconds"].as_f64().unwrap() * 1.001 && end > 0.0, "{end} {found}");
    assert!(bars.iter().any(|b| b.1 == 1) && bars.iter().all(|b| b.2 <= b.3), "{bars:?}");
    let kernels = bars.iter().filter(|b| b.1 == 0).count() as u64;
    assert!(kernels <= found["kernels"].as_u64().unwrap(), "{kernels}");
    let (code, _, err) = run_in(&at, &[&args[..], &["--html", "nowhere/estimate.html"]].concat());
    assert!(code == 1 && err.contains("nowhere"), "{err}");
}

/// The page of `explain` draws of each layout what `estimate` says of it; without a machine it draws no time.
#[test]
fn a_page_of_layouts_has_their_estimates() {
    let at = folder("estimated_layouts");
    let stages = ["gpt", "--preset", "tiny", "--mesh", "pipe=2,data=2"];
    let staged = ["batch -> data; layers -> pipe; microbatches 4", "batch -> data; microbatches 4"];
    for (model, layouts) in [(&MESH[..], [DP, BOTH]), (&stages[..], staged)] {
        let [first, second] = layouts;
        let page =
            [&["explain"], model, &["--layout", first, "--layout", second, "--html", "plan.html"]].concat();
        let machine = ["--machine", "dgx-h100"];
        let (code, _, err) = run_in(&at, &[&page[..], &machine].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        for (view, layout) in drawn(&at, "plan.html")["layouts"].as_array().unwrap().iter().zip(layouts) {
            let alone = answer(&at, &[&["estimate"], model, &["--layout", layout], &machine].concat());
            let estimate = &view["estimate"];
            assert_eq!(estimate["seconds"], alone["seconds"], "{layout}");
            assert_eq!(estimate["memory"][0], alone["memory"]["device_bytes"], "{layout}");
            // The times of collectives, at the steps that have them.
            let told: Vec<Value> = alone["collectives"]
                .as_array()
                .unwrap()
                .iter()
                .map(|c| json!([c["step"], c["seconds"], c["exposed_seconds"]]))
                .collect();
            assert_eq!(estimate["collectives"], json!(told), "{layout}");
            assert!(
                told.iter().all(|c| view["steps"][c[0].as_u64().unwrap() as usize]["collective"].is_object())
            );
            assert!(!estimate["bars"].as_array().unwrap().is_empty());
            assert_eq!(view["launches"]["device"], "cuda", "the launches are those that are timed");
        }
        let (code, _, err) = run_in(&at, &page);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(
            drawn(&at, "plan.html")["layouts"].as_array().unwrap().iter().all(|v| v["estimate"].is_null())
        );
    }
    // The machine of the environment counts as one that is named, also for another program; what is no machine is an error.
    let eval =
        [&["explain"], &MESH[..], &["--layout", DP, "--program", "eval", "--html", "eval.html"]].concat();
    let of = |machine: &str| {
        said(command(&eval).current_dir(&at).env("MESHWRIGHT_MACHINE", machine).output().unwrap())
    };
    assert_eq!(of("cpu").0, 0);
    assert!(drawn(&at, "eval.html")["layouts"][0]["estimate"]["seconds"].as_f64().unwrap() > 0.0);
    let (code, _, err) = of("dgx-h10");
    assert!(code == 1 && err.contains("E0515"), "{err}");
}

#[test]
fn what_is_wrong_with_the_evaluation_alone_is_told() {
    let at = folder("evaluation");
    let model = at.join("metric.mw").display().to_string();
    let text = "
dim batch = 4, d = 6
model m {
    input x[batch, d]: float
    param w[d] = 1
    let h = x * w
    loss l = mean[batch, d](h * h)
    metric min last = mean[batch, d](cumsum[d](h))
}
train m {
    minimize l
    optimizer sgd(lr = 0.1)
}
";
    std::fs::write(&model, text).unwrap();
    for command in ["explain", "check"] {
        let under = |rules: &str| run(&[command, &model, "--mesh", "a=2", "--layout", rules]);
        let (code, out, err) = under("d -> a");
        let needs = "`last[batch d]` needs `d` whole here";
        assert!(code == 1 && out.is_empty() && err.contains("E0310") && err.contains(needs), "{err}");
        assert_eq!(under("d -> a; gather d").0, 0);
    }
}
