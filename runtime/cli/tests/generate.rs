//! `generate`: text is continued alike whatever stands beside it and wherever it is computed, and what cannot be continued is
//! said.

use crate::support::{folder, lines, run_in};
use serde_json::Value;
use std::path::{Path, PathBuf};

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
            ("layers -> pipe; microbatches 2", "pipe=2"),
            ("batch -> data; layers -> pipe; chunks 2; stages 1, 0, 0, 1", "data=2,pipe=2"),
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

/// Tokens and the logarithm of their probability.
fn likely(t: &Value) -> (Vec<u64>, f64) {
    let tokens = t["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap());
    (tokens.collect(), t["log_probability"].as_f64().unwrap())
}

#[test]
fn a_beam_search_finds_the_most_probable_texts_on_any_layout() {
    let at = prepared("generate-beams");
    // As many beams as tokens: of two tokens all texts are tried.
    let wide = ["--prompt", "the sea saw", "--prompt", "a king", "--max-tokens", "2", "--beams", "300"];
    let best = texts(&at, &[&wide[..], &["--num-results", "300"]].concat());
    assert_eq!(best.len(), 600);
    for (number, prompt) in ["the sea saw", "a king"].into_iter().enumerate() {
        let mine: Vec<&Value> = best.iter().filter(|t| t["number"] == number).collect();
        assert!(mine.iter().enumerate().all(|(i, t)| t["rank"] == i && t["prompt"] == prompt));
        let found: Vec<(Vec<u64>, f64)> = mine.into_iter().map(likely).collect();
        assert!(found.windows(2).all(|w| w[0].1 >= w[1].1));
        // What is drawn without a search has the same probabilities, and none of it is better than what was found.
        let drawn = [["--prompt", prompt]; 60].concat();
        let drawn = texts(&at, &[&drawn[..], &["--max-tokens", "2", "--temperature", "0.15"]].concat());
        let mut known = 0;
        for (tokens, p) in drawn.iter().filter(|t| t["ended"] == "length").map(likely) {
            match found.iter().find(|f| f.0 == tokens) {
                Some(f) => {
                    known += 1;
                    assert!((f.1 - p).abs() < 1e-9, "{tokens:?}: {} {p}", f.1);
                }
                None => assert!(p < found[299].1 + 1e-9, "{tokens:?} is missing"),
            }
        }
        assert!(known > 5, "{known}");
    }
    // On every mesh the same, with texts that go on from those of other devices.
    let search = [
        &PROMPTS[..],
        &["--max-tokens", "12", "--beams", "4", "--num-results", "3"],
        &["--length-penalty", "0.6"],
    ];
    let one = texts(&at, &search.concat());
    assert_eq!(one.len(), 9);
    for t in &one {
        let (tokens, p) = likely(t);
        let length = tokens.len() + usize::from(t["ended"] == "end");
        let score = p / ((5 + length) as f64 / 6.0).powf(0.6);
        assert!((t["score"].as_f64().unwrap() - score).abs() < 1e-12, "{t}");
    }
    for (layout, mesh) in [
        ("batch -> data; heads, d_ff, vocab -> model", "data=2,model=2"),
        ("batch -> data", "data=5"),
        ("key -> ctx; heads -> model", "ctx=2,model=2"),
        ("layers -> pipe; stages 2, 0", "pipe=2"),
        ("batch -> data; layers -> pipe; chunks 2; stages 1, 0, 0, 1", "data=2,pipe=2"),
    ] {
        let there = texts(&at, &[&search.concat()[..], &["--layout", layout, "--mesh", mesh]].concat());
        assert_eq!(tokens(&there), tokens(&one), "{layout}");
        assert!(there.iter().zip(&one).all(|(a, b)| (likely(a).1 - likely(b).1).abs() < 1e-9), "{layout}");
    }
    // Text for people, the best first; one beam does what choosing the best token does.
    let (code, out, err) =
        run_in(&at, &["generate", "a", "--prompt", "a king", "--beams", "4", "--max-tokens", "5"]);
    assert!(code == 0 && out.starts_with("a king") && out.lines().count() == 1, "{out}{err}");
    let greedy = texts(&at, &[&PROMPTS[..], &["--max-tokens", "3"]].concat());
    // What would choose among several tokens says so where it does not.
    let idle = ["generate", "a", "--prompt", "a king", "--max-tokens", "3", "--top-k", "4"];
    let (code, _, err) = run_in(&at, &idle);
    let note = "note: `--top-k 4` changes nothing here: at temperature 0";
    assert!(code == 0 && err.contains(note) && err.contains("`--temperature 1` draws"), "{err}");
    let (code, _, err) = run_in(&at, &[&idle[..], &["--temperature", "1"]].concat());
    assert!(code == 0 && !err.contains("changes nothing"), "{err}");
    let narrow = texts(&at, &[&PROMPTS[..], &["--max-tokens", "3", "--beams", "1"]].concat());
    assert_eq!(tokens(&greedy), tokens(&narrow));
    for (more, code, text) in [
        (&["--beams", "0"][..], 2, "--beams"),
        (&["--beams", "2", "--temperature", "0.5"], 2, "cannot be used with"),
        (&["--num-results", "2"], 2, "--beams"),
        (&["--beams", "2", "--length-penalty=-1"], 2, "such as 0.6"),
        (&["--beams", "2", "--num-results", "3"], 1, "--beams 3"),
    ] {
        let (ended, out, err) = run_in(&at, &[&["generate", "a", "--prompt", "a king"], more].concat());
        assert!(ended == code && out.is_empty() && err.contains(text), "{more:?}: {ended} {err}");
    }
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

/// A table of positions ends a text as the sequences of the model do: no position beyond it is read, and no `--dim` is proposed
/// that a trained parameter cannot follow.
#[test]
fn positions_end_with_their_table() {
    let at = prepared("generate-positions");
    let long = "the sea ".repeat(75);
    let longer = ["--dim", "seq=200"];
    let run = |prompt: &str, more: &[&str]| {
        run_in(&at, &[&["generate", "a", "--max-tokens", "3", "--prompt", prompt][..], more].concat())
    };
    let trained = "parameters were trained with `places` = 128, in which `position` counts positions";
    for more in [&longer[..], &[]] {
        let (code, out, err) = run(&long, more);
        let positions = if more.is_empty() { 24 } else { 128 };
        let refused = code == 1 && out.is_empty() && err.contains("error[E0516]");
        assert!(refused && err.contains(&format!("and the model {positions} positions")), "{err}");
        assert!(err.contains(trained) && !err.contains("--dim"), "{err}");
    }
    // Below the table, a longer sequence is what helps.
    let some = "the sea ".repeat(18);
    let (code, _, err) = run(&some, &[]);
    assert!(code == 1 && err.contains("take a model of longer sequences: `--dim seq="), "{err}");
    let all = [&longer[..], &["--max-tokens", "500", "--temperature", "50"]].concat();
    let json = texts(&at, &[&["--prompt", "the sea"], &all[..]].concat());
    let count = json[0]["tokens"].as_array().unwrap().len();
    assert!(json[0]["ended"] == "context" && (110..129).contains(&count), "{json:?}");
}
