//! The README's network learns to read.

use crate::support::run;
use serde_json::Value;

#[test]
fn mnist_mlp_reaches_0_975_within_five_epochs_on_two_by_two() {
    let mut args = vec!["train", "mnist_mlp", "--layout", "batch -> r; hidden1 -> c", "--mesh", "r=2,c=2"];
    args.extend(["--dim", "batch=100", "--epochs", "5", "--no-save", "--format", "json"]);
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let events: Vec<Value> = said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let epochs: Vec<&Value> = events.iter().filter(|e| e["event"] == "epoch").collect();
    assert_eq!(epochs.len(), 5);
    assert_eq!(events.iter().filter(|e| e["event"] == "step").count(), 3000);
    let best = epochs.iter().map(|e| e["eval_accuracy"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(best >= 0.975, "{best}");
    let first = epochs[0]["train_loss"].as_f64().unwrap();
    let last = epochs[4]["train_loss"].as_f64().unwrap();
    assert!(last < first / 3.0, "{first} to {last}");
}
