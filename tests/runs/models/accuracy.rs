//! The README's network learns to read.

use crate::support::run;
use serde_json::Value;

/// With `LONG` set for the five epochs of the README.
#[test]
fn mnist_mlp_learns_on_two_by_two() {
    let long = std::env::var_os("LONG").is_some();
    let (count, least, falls) = if long { (5, 0.975, 3.0) } else { (2, 0.97, 2.0) };
    let mut args = vec!["train", "mnist_mlp", "--layout", "batch -> r; hidden1 -> c", "--mesh", "r=2,c=2"];
    let text = count.to_string();
    args.extend(["--dim", "batch=100", "--epochs", &text, "--no-save", "--format", "json"]);
    let said = run(&args);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let events: Vec<Value> = said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let epochs: Vec<&Value> = events.iter().filter(|e| e["event"] == "epoch").collect();
    assert_eq!(epochs.len(), count);
    assert_eq!(events.iter().filter(|e| e["event"] == "step").count(), 600 * count);
    let best = epochs.iter().map(|e| e["eval_accuracy"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(best >= least, "{best}");
    let loss = |epoch: &Value| epoch["train_loss"].as_f64().unwrap();
    let (first, last) = (loss(epochs[0]), loss(epochs[count - 1]));
    assert!(last < first / falls, "{first} to {last}");
}

/// Passages by the part of the book that they come from: of four parts, as many each, a guess is right in a quarter. With `LONG`
/// set as many steps as in `docs/fine-tuning.md`.
#[test]
fn bert_tells_parts_of_a_book_apart() {
    let long = std::env::var_os("LONG").is_some();
    let (steps, least) = if long { ("500", 0.55) } else { ("150", 0.38) };
    let of_all = ["warmup=20", "--dim", "classes=4", "--data", "king_james_parts", "--seed", "1"];
    let args =
        ["train", "bert_classify", "--preset", "tiny", "--steps", steps, "--set", "total=500", "--set"];
    let said = run(&[&args[..], &of_all, &["--no-save", "--format", "json"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.err);
    let events: Vec<Value> = said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let accuracy = events.iter().filter_map(|e| e["eval_accuracy"].as_f64()).next_back().unwrap();
    assert!(accuracy > least, "{accuracy}");
    let loss = |e: &Value| e["loss"].as_f64().filter(|_| e["event"] == "step");
    let losses: Vec<f64> = events.iter().filter_map(loss).collect();
    // So many equally likely parts have this entropy.
    assert!((losses[0] - 4f64.ln()).abs() < 0.2, "{losses:?}");
    assert!(losses.iter().all(|l| l.is_finite()) && losses.len() >= 2, "{losses:?}");
}

/// What a model that knows the frequency of each token, and nothing more, loses to the text of the King James Bible as it is
/// tokenized here, in nats.
const SINGLE_TOKENS: [(&str, &str, f64); 2] =
    [("gpt", "king_james_next", 6.00), ("bert", "king_james_masked", 5.86)];

/// Language models learn frequencies first, and with `LONG` set, when there are steps enough, what follows what, and what belongs
/// between: `docs/results/learning.md`.
#[test]
fn language_models_learn_more_than_frequencies() {
    let long = std::env::var_os("LONG").is_some();
    for (model, data, entropy) in SINGLE_TOKENS {
        let (steps, at_most) = if long { ("1500", entropy - 1.2) } else { ("60", entropy + 0.6) };
        let args = ["train", model, "--preset", "tiny", "--data", data, "--steps", steps, "--seed", "0"];
        let said = run(&[&args[..], &["--no-save", "--format", "json"]].concat());
        assert_eq!(said.code, Some(0), "{model}: {}", said.err);
        let events: Vec<Value> = said.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let loss = events.iter().filter_map(|e| e["eval_loss"].as_f64()).next_back().unwrap();
        assert!(loss < at_most, "{model}: {loss} of at most {at_most}");
        assert!(loss > 2.0, "{model}: {loss} is less than such a text can have");
    }
}
