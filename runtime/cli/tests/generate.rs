//! `generate`: text is continued alike whatever stands beside it and wherever it is computed, and what cannot be continued is
//! said.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use support::{folder, lines, run_in};

const SIZES: [&str; 16] = [
    "--preset",
    "tiny",
    "--dim",
    "batch=4",
    "--dim",
    "seq=24",
    "--dim",
    "vocab=300",
    "--dim",
    "layers=2",
    "--dim",
    "heads=4",
    "--dim",
    "d_head=6",
    "--dim",
    "d_ff=20",
];

/// A folder with a small text, its tokens, and a run `a` of a small GPT on it.
fn prepared(name: &str) -> PathBuf {
    let at = folder(name);
    let words = ["the sea", "a king", "the light", "his people", "and the land", "a great stone"];
    let line = |i: usize| {
        let word = |k: usize| words[(i * 7 + k * 5 + i * k) % words.len()];
        format!("{} saw {} and went to {}.\n\n", word(0), word(1), word(2))
    };
    std::fs::write(at.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let tokenize = [
        "data", "tokenize", "text.txt", "--out", "data", "--test", "0.2", "--train", "bpe", "--vocab", "300",
    ];
    let (code, _, err) = run_in(&at, &tokenize);
    assert_eq!(code, 0, "{err}");
    let train = [
        &["train", "gpt", "--data", "data", "--run", "a", "--steps", "40", "--precision", "f64"][..],
        &SIZES,
    ];
    let (code, _, err) = run_in(&at, &train.concat());
    assert_eq!(code, 0, "{err}");
    at
}

/// The texts that a command gives.
fn texts(at: &Path, more: &[&str]) -> Vec<Value> {
    let (code, out, err) = run_in(at, &[&["generate", "a", "--format", "json"], more].concat());
    assert_eq!(code, 0, "{more:?}: {err}");
    lines(&out)
}

fn tokens(texts: &[Value]) -> Vec<&Value> {
    texts.iter().map(|t| &t["tokens"]).collect()
}

const PROMPTS: [&str; 6] =
    ["--prompt", "the sea saw", "--prompt", "a king", "--prompt", "his people saw a great stone and"];

#[test]
fn texts_do_not_depend_on_what_stands_beside_them_nor_on_the_layout() {
    let at = prepared("generate-alike");
    let drawn = ["--temperature", "0.9", "--top-k", "30", "--top-p", "0.95", "--seed", "5"];
    for how in [&[][..], &drawn] {
        let of = |more: &[&str]| texts(&at, &[&PROMPTS, how, &["--max-tokens", "12"], more].concat());
        let together = of(&[]);
        assert_eq!(together.len(), 3);
        for t in &together {
            let n = t["tokens"].as_array().unwrap().len();
            assert!(n == 12 || t["ended"] == "end" && n < 12, "{t}");
            assert!(t["log_probability"].as_f64().unwrap() < 0.0, "{t}");
        }
        // The first text is drawn alike without the others.
        let alone = texts(&at, &[&PROMPTS[..2], how, &["--max-tokens", "12"]].concat());
        assert_eq!(tokens(&alone), tokens(&together[..1]));
        if how.is_empty() {
            let last = texts(&at, &[&PROMPTS[4..], &["--max-tokens", "12"]].concat());
            assert_eq!(tokens(&last), tokens(&together[2..]));
        } else {
            let other = texts(&at, &[&PROMPTS, &drawn[..7], &["6"]].concat());
            assert_ne!(tokens(&other), tokens(&together));
        }
        for (layout, mesh) in [
            ("batch -> data; heads, d_ff, vocab -> model", "data=2,model=2"),
            ("batch -> data", "data=3"),
            ("key -> ctx; heads -> model", "ctx=2,model=2"),
            ("vocab -> model; params: * -> data", "data=2,model=2"),
        ] {
            let there = of(&["--layout", layout, "--mesh", mesh]);
            assert_eq!(tokens(&there), tokens(&together), "{layout}");
            for (a, b) in there.iter().zip(&together) {
                let [a, b] = [a, b].map(|t| t["log_probability"].as_f64().unwrap());
                assert!((a - b).abs() < 1e-9, "{layout}: {a} {b}");
            }
        }
    }
}

#[test]
fn text_ends_where_it_must_and_is_printed_as_it_is_made() {
    let at = prepared("generate-ends");
    let prompt = ["--prompt", "the light saw"];
    let json = texts(&at, &[&prompt[..], &["--max-tokens", "3"]].concat());
    assert_eq!((json[0]["ended"].as_str(), json[0]["tokens"].as_array().unwrap().len()), (Some("length"), 3));
    let (code, out, err) = run_in(&at, &[&["generate", "a", "--max-tokens", "3"], &prompt[..]].concat());
    assert_eq!((code, out), (0, format!("the light saw{}\n", json[0]["text"].as_str().unwrap())), "{err}");
    assert!(err.contains("tokens/s") && err.contains("decoding: 2 tokens"), "{err}");
    // As many as there is room for: what follows the last position can still be told.
    let hot = ["--temperature", "50", "--max-tokens", "100", "--seed", "3"];
    let long = texts(&at, &[&prompt[..], &hot].concat());
    let given = 25 - long[0]["tokens"].as_array().unwrap().len();
    assert!(long[0]["ended"] == "context" && (1..10).contains(&given), "{long:?}");
    let (_, _, err) = run_in(&at, &[&["generate", "a"], &prompt[..], &hot].concat());
    assert!(err.contains("no positions left"), "{err}");
    std::fs::write(at.join("many.txt"), "the sea\n\na king saw\n").unwrap();
    let many = texts(&at, &["--prompts", "many.txt", "--max-tokens", "2"]);
    assert_eq!(
        many.iter().map(|t| t["prompt"].as_str().unwrap()).collect::<Vec<_>>(),
        ["the sea", "a king saw"]
    );
}

#[test]
fn what_cannot_be_continued_is_said() {
    let at = prepared("generate-refused");
    let long = "the sea ".repeat(40);
    let cases: [(&[&str], &str, &str); 6] = [
        (&["--prompt", ""], "E0516", "is empty"),
        (&["--prompt", &long], "E0516", "and the model 24 positions"),
        (&["--prompt", "a", "--value", "logit"], "E0516", "logits"),
        (&["--prompt", "a", "--value", "x"], "E0516", "tells 24 tokens apart"),
        (&["--prompt", "a", "--data", "nowhere"], "E0501", "--tokenizer"),
        (&["--prompts", "nowhere.txt"], "E0502", "nowhere.txt"),
    ];
    for (more, code, text) in cases {
        let (ended, out, err) = run_in(&at, &[&["generate", "a"], more].concat());
        assert!(
            ended == 1 && out.is_empty() && err.contains(code) && err.contains(text),
            "{more:?}: {ended} {err}"
        );
    }
    assert_eq!(run_in(&at, &["generate", "a"]).0, 2);
    assert_eq!(run_in(&at, &["generate", "a", "--prompt", "a", "--top-p", "1.5"]).0, 2);
    let (code, _, err) = run_in(&at, &["generate", "mlp", "--checkpoint", "a", "--prompt", "a"]);
    assert!(code == 1 && err.contains("E0516") && err.contains("no input of tokens"), "{err}");
    // A model that sees what follows.
    let model =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gpt.mw")).unwrap();
    std::fs::write(at.join("sees_all.mw"), model.replace("causal(seq, key) and ", "")).unwrap();
    let checkpoint = ["generate", "sees_all.mw", "--checkpoint", "a", "--data", "data", "--prompt", "a"];
    let (code, _, err) = run_in(&at, &[&checkpoint[..], &SIZES].concat());
    assert!(
        code == 1 && err.contains("E0527") && err.contains("all positions are seen along `key`"),
        "{err}"
    );
}
