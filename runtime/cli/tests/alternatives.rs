//! Lines of a layout that trade bytes for memory, as `explain` and `check` tell of them.

use crate::support::run;

/// Lines that move fewer bytes for more memory are told of with what they move and hold, and by `check` where that fits.
#[test]
fn what_other_lines_would_move_and_hold_is_told() {
    let split = "batch -> data; params: * -> data; microbatches 2";
    let given = |command: &str, layout: &str, more: &[&str]| {
        let args =
            [&[command, "gpt", "--preset", "tiny", "--mesh", "data=4", "--layout", layout], more].concat();
        let (code, out, err) = run(&args);
        assert_eq!(code, 0, "{err}");
        (out, err)
    };
    let report = |layout: &str| -> serde_json::Value {
        serde_json::from_str(&given("explain", layout, &["--format", "json"]).0).unwrap()
    };
    let now = report(split);
    let told = now["alternatives"].as_array().unwrap();
    assert_eq!(
        told.iter().map(|a| a["line"].as_str().unwrap()).collect::<Vec<_>>(),
        ["keep params", "reduce grads once"]
    );
    for a in told {
        // It is what the line makes of the step.
        let then = &report(&format!("{split}; {}", a["line"].as_str().unwrap()))["per_device"];
        for key in ["collective_bytes", "peak_bytes"] {
            assert_eq!(a[key], then[key], "{a}");
        }
        assert!(a["collective_bytes"].as_u64() < now["per_device"]["collective_bytes"].as_u64(), "{a}");
    }
    let peak = told[0]["peak_bytes"].as_u64().unwrap();
    let notes = |memory: u64| given("check", split, &["--memory", &memory.to_string()]).1;
    assert!(!given("check", split, &[]).1.contains("`keep params`"));
    let [fits, short] = [notes(peak), notes(peak - 1)].map(|n| n.contains("`keep params` moves "));
    assert!(fits && !short);
    // With both lines there is nothing to keep; by part is the other way again.
    let both = report(&format!("{split}; keep params; reduce grads once"));
    let lines: Vec<&str> =
        both["alternatives"].as_array().unwrap().iter().map(|a| a["line"].as_str().unwrap()).collect();
    assert_eq!(lines, ["reduce grads by part"]);
}
