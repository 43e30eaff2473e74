//! Device plans that `explain` prints, as text and as JSON.

use crate::support::{lines, run};

#[test]
fn the_launches_of_a_gpu_are_shown_where_there_is_none() {
    let of = ["explain", "gpt", "--preset", "tiny", "--precision", "bf16", "--device", "cuda"];
    let (code, text, err) = run(&[&of[..], &["--emit", "device"]].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(text.starts_with("rank 0 of 1 on cuda: "), "{text}");
    for part in [
        " rows [",
        " attention [",
        " matmul_fused [",
        " matmuls [",
        " look_up [",
        " burn [",
        " | in place",
        " @",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, json, _) = run(&[&of[..], &["--emit", "device", "--format", "json"]].concat());
    let device = &lines(&json)[0];
    assert_eq!((&device["version"], &device["target"]), (&serde_json::json!(1), &serde_json::json!("cuda")));
    let launches = device["launches"].as_array().unwrap();
    let rows = launches.iter().find(|l| l["kind"] == "rows").unwrap();
    assert!(rows["steps"].as_array().unwrap().len() > 3 && rows["line"].as_u64().unwrap() > 0, "{rows}");
    assert!(rows["read"].as_u64().unwrap() > 0 && rows["writes"][0]["at"].is_array(), "{rows}");
    // The report counts the same.
    let (_, report, _) = run(&[&of[..], &["--format", "json"]].concat());
    let (report, totals) = (&lines(&report)[0]["device"], &device["totals"]);
    for (in_report, in_plan) in [
        ("kernels", "kernels"),
        ("read_bytes", "read"),
        ("arena_bytes", "arena_bytes"),
        ("peak_bytes", "peak_bytes"),
    ] {
        assert_eq!(report[in_report], totals[in_plan], "{in_report}");
    }
    let (_, again, _) = run(&[&of[..], &["--emit", "device", "--format", "json"]].concat());
    assert_eq!(json, again);
}

/// JSON has what the text of a device plan says: inputs, loops with what they pass on, collectives with their calls, waits, and
/// Burn's operations.
#[test]
fn a_device_plan_in_json_has_what_its_text_has() {
    let of = ["explain", "gpt", "--preset", "tiny", "--layout", "dp", "--mesh", "data=2", "--device", "cuda"];
    let (_, text, _) = run(&[&of[..], &["--emit", "burn"]].concat());
    let (_, json, _) = run(&[&of[..], &["--emit", "device", "--format", "json"]].concat());
    let device = &lines(&json)[0];
    let list = |v: &serde_json::Value| v.as_array().unwrap().clone();
    let word = |v: &serde_json::Value| v.as_str().unwrap().to_string();
    let tensor = |t: &serde_json::Value| {
        let ends = if t["ends"] == true { "*" } else { "" };
        format!(
            "{}{ends} {}{}",
            word(&t["slot"]),
            word(&t["dtype"]),
            t["shape"].to_string().replace(',', ", ")
        )
    };
    let tensors = |v: &serde_json::Value| list(v).iter().map(tensor).collect::<Vec<_>>().join(", ");
    let mut said: Vec<String> = Vec::new();
    for input in list(&device["inputs"]) {
        said.push(format!("{} = {}", tensor(&input), word(&input["name"])));
    }
    for launch in list(&device["launches"]) {
        let id = &launch["id"];
        for operation in launch["operations"].as_array().unwrap_or(&vec![]) {
            said.push(match word(&operation["name"]).as_str() {
                "drop" => continue,
                name => {
                    format!("{name} {} -> {}", tensors(&operation["reads"]), tensors(&operation["writes"]))
                }
            });
        }
        if let Some(of) = launch.get("loop") {
            let last = if of["reverse"] == true { ", from the last" } else { "" };
            let times = format!("{id} loop over the {} positions of {}", of["iterations"], word(&of["dim"]));
            said.push(format!("{times}{last}"));
            for c in list(&of["carries"]) {
                let ends = if c["ends"] == true { "*" } else { "" };
                let [start, current, next, end] = ["start", "current", "next", "last"].map(|k| word(&c[k]));
                said.push(format!("{current} = {start}{ends}, then {next}; in the end {end}"));
            }
        }
        if let Some(of) = launch.get("collective") {
            let starts = if of["async"] == true { " start" } else { "" };
            let ranks = of["ranks"].to_string().replace(',', ", ");
            let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{id} "))).unwrap();
            assert!(
                line.contains(&format!("{starts} [")) && line.contains(&format!("of ranks {ranks}")),
                "{line}"
            );
            for call in list(&of["calls"]) {
                let reduction = call["reduction"].as_str().map(|r| format!(" {r}")).unwrap_or_default();
                for (send, receive) in list(&call["sends"]).iter().zip(list(&call["receives"])) {
                    said.push(format!(
                        "{}{reduction} {} -> {}",
                        word(&call["op"]),
                        tensor(send),
                        tensor(&receive)
                    ));
                }
            }
        }
        if let Some(start) = launch.get("start") {
            said.push(format!("{id} wait for {start}"));
        }
        if launch["in_place"] == true {
            let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{id} "))).unwrap();
            assert!(line.contains(" | in place"), "{line}");
        }
    }
    let shown: Vec<&str> = text.lines().map(str::trim_start).collect();
    for line in &said {
        assert!(shown.iter().any(|l| l.starts_with(line.as_str())), "{line}");
    }
    let count = |part: &str| said.iter().filter(|l| l.contains(part)).count();
    for part in [" loop over the ", " = ", ", then ", "all_reduce sum ", " wait for ", "permute "] {
        let of_text = shown.iter().filter(|l| l.contains(part) && !l.starts_with("b: ")).count();
        assert!(count(part) > 0 && count(part) == of_text, "{part}: {} of {of_text}", count(part));
    }
}
