//! `search`, as a user types it.

use crate::support::{folder, run};
use serde_json::Value;

/// What a command prints, which must succeed.
fn printed(args: &[&str]) -> String {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

#[test]
fn a_search_names_its_space_its_certificate_and_what_others_lose() {
    let out =
        printed(&["search", "mlp", "--devices", "2", "--machine", "cpu", "--format", "json", "--top", "3"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["space"]["axes"], 1);
    assert_eq!(report["space"]["meshes"], serde_json::json!(["2"]));
    assert!(report["space"]["sets"].as_array().unwrap().contains(&"batch".into()), "{report}");
    assert!(report["proven"].as_bool().unwrap() && report["gap"].as_f64().unwrap() <= 0.005, "{report}");
    let rejected = &report["rejected"];
    let sum: u64 =
        ["conflict", "gather", "memory", "bound"].iter().map(|k| rejected[k].as_u64().unwrap()).sum();
    let estimated = report["estimated"].as_u64().unwrap() - rejected["memory"].as_u64().unwrap();
    assert_eq!(sum + estimated, report["space"]["candidates"].as_u64().unwrap());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    let (first, second) = (&rows[0], &rows[1]);
    assert_eq!(
        (&first["rank"], &first["runnable"], &first["measured_ms"]),
        (&1.into(), &true.into(), &Value::Null)
    );
    assert_eq!(first["loses"], serde_json::json!({}));
    let lost: f64 = second["loses"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
    let by = second["seconds"].as_f64().unwrap() - first["seconds"].as_f64().unwrap();
    assert!((lost - by).abs() < 1e-12, "{lost} {by}");
    // The same layout, estimated by itself.
    let of = ["--layout", first["layout"].as_str().unwrap(), "--mesh", first["mesh"].as_str().unwrap()];
    let alone = printed(&[&["estimate", "mlp", "--machine", "cpu", "--format", "json"], &of[..]].concat());
    let alone: Value = serde_json::from_str(&alone).unwrap();
    // A row is the whole of it, but for texts that say where it comes from.
    for (key, value) in alone.as_object().unwrap().iter().filter(|(key, _)| *key != "collectives") {
        assert_eq!(value, &first[key], "{key}");
    }
    let collectives = |of: &Value| -> Vec<(Value, Value)> {
        let all = of["collectives"].as_array().unwrap().iter();
        all.map(|c| (c["op"].clone(), c["line"].clone())).collect()
    };
    assert_eq!(collectives(&alone), collectives(first));
    assert!(collectives(first).iter().all(|(_, line)| line.as_u64().unwrap() > 0), "{first}");
}

/// Of layouts that are nearly as fast as the fastest the simplest is the best, and the certificate says so.
#[test]
fn the_best_may_be_a_little_slower_and_simpler() {
    let of = ["search", "mnist_mlp", "--devices", "4", "--machine", "cpu"];
    let read = |more: &[&str]| -> Value {
        serde_json::from_str(&printed(&[&of[..], &["--format", "json"], more].concat())).unwrap()
    };
    let (all, front) = (read(&[]), read(&["--pareto"]));
    let seconds = |row: &Value| row["seconds"].as_f64().unwrap();
    let fastest = all["rows"].as_array().unwrap().iter().map(seconds).fold(f64::INFINITY, f64::min);
    let gap = seconds(&all["rows"][0]) / fastest - 1.0;
    assert!(gap > 0.0 && gap < 0.005, "another model is needed for this test: {gap}");
    assert!(all["proven"] == true && (all["gap"].as_f64().unwrap() - gap).abs() < 1e-9, "{all}");
    let out = printed(&of);
    assert!(out.contains(" faster, and none so fast is simpler"), "{out}");
    // Each time has its band, what is lost too, and a terminal shows all lines whole.
    let lost = out.matches(" +0.").count() + out.matches(" -0.").count();
    assert!(lost > 3, "{out}");
    assert_eq!(out.matches(" +- 15 %").count(), 1 + all["rows"].as_array().unwrap().len() + lost, "{out}");
    let sums = out.lines().filter(|l| l.contains(" ms slower: ") || l.contains(" ms faster: "));
    assert!(sums.clone().count() > 1 && sums.clone().all(|l| l.contains(" +- 0.")), "{out}");
    assert!(out.lines().all(|l| l.chars().count() <= 110), "{out}");
    // It is the first of the front too.
    let rows = front["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["rank"], &rows[0]["layout"]), (&1.into(), &all["rows"][0]["layout"]));
    assert!(rows.len() > 1 && rows[1..].iter().all(|r| r["pareto"] == true), "{front}");
}

/// A search that is stopped at once has an answer, with its gap.
#[test]
fn a_search_without_time_has_an_answer() {
    let of = "search bert --preset tiny --devices 64 --machine dgx-h100 --dim batch=512 --time-limit 1e-9";
    let of: Vec<&str> = of.split(' ').collect();
    let report: Value = serde_json::from_str(&printed(&[&of[..], &["--format", "json"]].concat())).unwrap();
    assert!(report["proven"] == false && report["gap"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["bound"].as_f64().unwrap() > 0.0 && !report["rows"].as_array().unwrap().is_empty());
    // One that finds nothing in its time does not say that nothing fits.
    let little = ["--with", "device.reserve=1e6", "--with", "device.memory=8e6"];
    let (code, _, said) = run(&[&of[..], &little].concat());
    assert!(code == 1 && said.contains("error[E0531]: the time was over before"), "{said}");
    assert!(said.contains("nearest: ") && said.contains("no candidate is faster than"), "{said}");
}

/// A loop that a line splits has its stages already.
#[test]
fn layers_are_divided_once() {
    let of = "search gpt --preset tiny --devices 4 --machine cpu --pipe auto --layout";
    let of: Vec<&str> = of.split(' ').chain(["layers -> p; microbatches 4"]).collect();
    let (code, _, said) = run(&of);
    assert!(code == 1 && said.contains("error[E0516]: `--pipe` divides `layers` into stages"), "{said}");
    assert!(said.contains("leave out `--pipe`, or the rule for `layers`"), "{said}");
}

#[test]
fn the_best_is_written_and_measured() {
    let dir = folder("search");
    let file = dir.join("best.layout");
    let path = file.to_str().unwrap();
    let text = printed(&[
        "search",
        "mlp",
        "--devices",
        "2",
        "--machine",
        "cpu",
        "--layout",
        "batch -> data",
        "--write",
        path,
        "--measure",
        "2",
        "--steps",
        "3",
        "--axes",
        "data",
    ]);
    assert!(text.contains("proven: no candidate is faster") && text.contains("measured"), "{text}");
    let layout = std::fs::read_to_string(&file).unwrap();
    assert!(
        layout.starts_with("// For 2 devices of two cores: ") && layout.contains("mesh data = 2\n"),
        "{layout}"
    );
    assert!(layout.contains("batch -> data"), "{layout}");
    printed(&["fmt", "--check", path]);
    printed(&["check", "mlp", "--layout", path]);
}

/// All candidates of a small space are timed where more are asked for; the first is one of them.
#[test]
fn a_sample_of_the_space_is_timed() {
    let of =
        "search mlp --dim batch=8 --devices 2 --machine cpu --axes data --measure 1 --steps 3 --sample 500";
    let kept = ["--layout", "batch -> data; microbatches 1"];
    let of = [&of.split(' ').collect::<Vec<_>>()[..], &kept].concat();
    let report: Value = serde_json::from_str(&printed(&[&of[..], &["--format", "json"]].concat())).unwrap();
    let sample = &report["sample"];
    let count = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{report}"));
    assert!(count(&sample["drawn"]) > 2 && sample["drawn"] == report["space"]["candidates"], "{report}");
    assert_eq!(count(&sample["timed"]) + count(&sample["refused"]), count(&sample["drawn"]), "{sample}");
    let fastest = &sample["fastest"];
    let number = |key: &str| fastest[key].as_f64().unwrap_or_else(|| panic!("{sample}"));
    assert!(number("measured_ms") > 0.0 && number("estimated_ms") > 0.0, "{sample}");
    assert!((0.1..10.0).contains(&number("ratio")), "{sample}");
    let text = printed(&of);
    assert!(text.contains("sample ") && text.contains(" than the first"), "{text}");
    let (code, _, said) = run(&["search", "mlp", "--devices", "2", "--machine", "cpu", "--sample", "3"]);
    assert!(code == 2 && said.contains("--measure"), "{said}");
}

#[test]
fn what_does_not_fit_says_by_how_much() {
    let tight = ["--machine", "cpu", "--with", "device.reserve=1e8", "--with", "device.memory=5e8"];
    let (code, _, said) =
        run(&[&["search", "bert", "--devices", "2", "--time-limit", "20"], &tight[..]].concat());
    assert_eq!(code, 1);
    assert!(said.contains("error[E0401]: no layout of bert fits on 2 devices of two cores"), "{said}");
    assert!(said.contains("nearest: `") && said.contains("more than there are"), "{said}");
    // It takes little memory: what is dropped without being compiled is looked at in the end.
    assert!(said.contains("microbatches") && said.contains("recompute layers.*"), "{said}");
    assert!(said.contains("it fits with `") || said.contains("take more devices"), "{said}");
    let (code, _, said) = run(&["search", "mlp", "--devices", "1000003", "--machine", "cpu"]);
    assert!(code == 1 && said.contains("error[E0531]: no axes of a mesh"), "{said}");
    for (more, usage) in [
        (["--gather", "nothing"], "`mlp` has no dim `nothing`"),
        (["--axes", "a,a"], "`a` is there twice"),
        (["--time-limit", "0"], "seconds above 0"),
    ] {
        let (code, _, said) =
            run(&[&["search", "mlp", "--devices", "2", "--machine", "cpu"], &more[..]].concat());
        assert!(code == 2 && said.contains(usage), "{said}");
    }
}

#[test]
fn pipelines_are_searched_written_and_run() {
    let at = folder("search-pipe");
    let file = at.join("best.layout");
    let file = file.to_str().unwrap();
    // Memory so slow that gradients are not reduced, but for messages to the next stage.
    let slow = ["--machine", "cpu", "--with", "tier.memory.rate=1e7", "--with", "tier.memory.p2p=1e12"];
    let sizes = ["--preset", "tiny", "--dim", "batch=16"];
    let of = [&["search", "gpt", "--devices", "2", "--pipe", "auto"], &sizes[..], &slow].concat();
    let json: Value = serde_json::from_str(&printed(&[&of[..], &["--format", "json"]].concat())).unwrap();
    let best = &json["rows"][0];
    assert_eq!((&best["runnable"], &best["pipe"]["stages"]), (&true.into(), &2.into()), "{best}");
    assert!(best["breakdown"]["bubble"].as_f64().unwrap() > 0.0, "{best}");
    assert!(json["space"]["meshes"].as_array().unwrap().contains(&"2 stages of 1".into()), "{json}");
    let out = printed(&[&of[..], &["--write", file]].concat());
    assert!(out.contains("pipe=2") && out.contains("layers -> pipe"), "{out}");
    let written = std::fs::read_to_string(file).unwrap();
    assert!(written.contains("mesh pipe = 2\n") && written.contains("\nlayers -> pipe\n"), "{written}");
    // The Plan of the layout takes the time that the search has given.
    let layout = [&sizes[..], &["--layout", file]].concat();
    let of = [&["estimate", "gpt", "--format", "json"], &layout[..], &slow].concat();
    let own: Value = serde_json::from_str(&printed(&of)).unwrap();
    let apart = own["seconds"].as_f64().unwrap() / best["seconds"].as_f64().unwrap() - 1.0;
    assert!(apart.abs() < 0.01 && own["pipe"]["stages"] == 2, "{apart}: {own}");
    assert!(own["breakdown"]["bubble"].as_f64().unwrap() > 0.0, "{own}");
    let out = printed(&[&["train", "gpt", "--steps", "1", "--no-save", "--no-eval"], &layout[..]].concat());
    assert!(out.contains("loss"), "{out}");
}

#[test]
fn pipelines_are_written_for_gpus_too() {
    let at = folder("search-pipe-gpu");
    let file = at.join("best.layout");
    let of = "search gpt --preset tiny --dim batch=64 --devices 2 --machine dgx-h100 --pipe auto";
    let slow = "--with tier.nvlink.rate=1e8 --with tier.nvlink.p2p=1e12";
    let of: Vec<&str> = of.split(' ').chain(slow.split(' ')).collect();
    let json: Value = serde_json::from_str(&printed(&[&of[..], &["--format", "json"]].concat())).unwrap();
    assert_eq!(json["rows"][0]["runnable"], true, "{json}");
    let (code, out, err) = run(&[&of[..], &["--write", file.to_str().unwrap()]].concat());
    assert!(code == 0 && out.contains("layers -> pipe"), "{out}{err}");
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("of DGX H100 80 GB") && written.contains("\nlayers -> pipe\n"), "{written}");
    let (code, _, err) = run(&["search", "mlp", "--devices", "2", "--machine", "cpu", "--pipe", "auto"]);
    assert!(code == 1 && err.contains("E0516") && err.contains("`repeat` over layers"), "{err}");
}
