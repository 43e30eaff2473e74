//! What `search` may choose from: orders of axes, gathers, and pipelines that cannot run.

use crate::support::{folder, run};
use serde_json::Value;

fn report(args: &[&str]) -> Value {
    let (code, out, err) = run(&[&["search"], args, &["--format", "json"]].concat());
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {report}"))
}

#[test]
fn axes_come_in_all_orders() {
    let of = ["mlp", "--dim", "batch=8", "--devices", "4", "--machine", "cpu"];
    let usual = report(&[&of[..], &["--top", "500"]].concat());
    let all = report(&[&of[..], &["--orders", "all", "--top", "500"]].concat());
    let candidates = |r: &Value| number(r, "/space/candidates");
    assert!(candidates(&all) > candidates(&usual), "{} {}", candidates(&all), candidates(&usual));
    assert!(all["proven"] == true && usual["proven"] == true);
    let seconds = |r: &Value| r["rows"][0]["seconds"].as_f64().unwrap();
    assert!(seconds(&all) <= seconds(&usual) * 1.005, "more to choose from");
    // Of two axes the one that splits the batch is the major one, but for all orders.
    let minor = |r: &Value| r["rows"].as_array().unwrap().iter().any(|row| row["mesh"] == "model=2,data=2");
    assert!(!minor(&usual), "{usual}");
}

#[test]
fn what_a_rule_does_not_imply_is_gathered_where_that_is_permitted() {
    let of =
        ["bert", "--preset", "tiny", "--devices", "2", "--machine", "cpu", "--axes", "data", "--top", "500"];
    let (without, with) = (report(&of), report(&[&of[..], &["--gather", "key"]].concat()));
    let refused = |r: &Value| number(r, "/rejected/gather");
    assert!(refused(&without) > 0 && refused(&with) < refused(&without), "{without} {with}");
    let rows = with["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["layout"].as_str().unwrap().contains("gather key")), "{with}");
}

/// Something of each layer is needed behind the layers, which no stage has: the compiler refuses the stages.
const MIXED: &str = "
dim batch = 8, d = 256, e = d, layers = 4
model mixed {
    input x[batch, d]: float
    param mix[layers] = 1
    let y = x
    repeat layers {
        param w[d, e] = normal(0, 0.1)
        y = tanh(sum[d](y * w)[e -> d])
    }
    loss l = mean[batch, d, layers](tanh(y * mix))
}
train mixed { minimize l optimizer sgd(lr = 0.1) }
";

#[test]
fn a_pipeline_that_cannot_run_is_shown_and_not_written() {
    let at = folder("search-refused");
    let (model, file) = (at.join("mixed.mw"), at.join("best.layout"));
    std::fs::write(&model, MIXED).unwrap();
    let (model, file) = (model.to_str().unwrap(), file.to_str().unwrap());
    // Links so slow that nothing is summed over them, but for messages to the next stage.
    let slow = ["--machine", "cpu", "--with", "tier.memory.rate=1e6", "--with", "tier.memory.p2p=1e12"];
    let of = [&[model, "--devices", "2", "--pipe", "auto"], &slow[..]].concat();
    let found = report(&of);
    let best = &found["rows"][0];
    assert_eq!((&best["runnable"], &best["pipe"]["projected"]), (&false.into(), &true.into()), "{found}");
    let (code, out, err) = run(&[&["search"], &of[..]].concat());
    assert!(code == 0 && out.contains("(refused)"), "{out}{err}");
    let (code, _, err) = run(&[&["search"], &of[..], &["--write", file]].concat());
    assert!(code == 1 && err.contains("error[E0315]") && err.contains("nothing is written"), "{err}");
    assert!(!std::path::Path::new(file).exists());
    // Without stages the best is written, as the error says.
    let plain = [&["search", model, "--devices", "2"], &slow[..], &["--write", file]].concat();
    let (code, _, err) = run(&plain);
    assert!(code == 0 && std::path::Path::new(file).exists(), "{err}");
}
