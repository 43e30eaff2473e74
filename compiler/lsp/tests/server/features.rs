//! What is shown: types, placements, hints, lenses, completions, colors, folds and outlines.

use crate::client::{Client, uri};
use meshwright_sorted::SortedSet;
use serde_json::{Value, json};

const MNIST: &str = include_str!("../../../../models/mnist_mlp.mw");
const LAYOUT: &str = "mesh r = 2, c = 2\nbatch -> r\nhidden1 -> c\n";

fn client() -> Client {
    Client::with(&[("mnist.mw", MNIST), ("mnist.layout", LAYOUT)])
}

fn has(text: &str, pieces: &[&str]) {
    for p in pieces {
        assert!(text.contains(p), "`{p}` is not in:\n{text}");
    }
}

#[test]
fn a_hover_has_type_shard_and_collectives() {
    let mut c = client();
    let shown = c.hover("mnist.mw", "let |h2", 0);
    has(
        &shown,
        &[
            "f32 [batch hidden2]",
            "batch = 100, hidden2 = 1,024: 102,400 elements, 400 KiB",
            "under `mnist.layout` on the mesh r = 2, c = 2",
            "| `h2` | 50 x 1,024 f32 | 200 KiB | `batch:r` |",
            "all-reduce of `h2` over `c` in the forward pass: 204,800 bytes, because `hidden1` is summed (layout line 3)",
        ],
    );
    // The split of `h1` is why `h2` is reduced.
    has(
        &c.hover("mnist.mw", "let |h1", 0),
        &["all-reduce of `h2` over `c`", "this value is split along `hidden1`"],
    );
    // Under another layout, all of it changes.
    c.change("mnist.layout", "mesh r = 2\nbatch -> r\n");
    let shown = c.hover("mnist.mw", "let |h2", 0);
    has(&shown, &["on the mesh r = 2\n", "50 x 1,024"]);
    assert!(!shown.contains("forward pass"), "{shown}");
}

#[test]
fn a_hover_has_declarations_and_documentation() {
    let mut c = client();
    has(
        &c.hover("mnist.mw", "|dense(x", 0),
        &["layer dense(x, in, out, gain = 1)", "A linear map with a bias", "gives `f32 [batch hidden1]`"],
    );
    has(&c.hover("mnist.mw", "|relu(", 0), &["relu(x)", "Types:"]);
    has(&c.hover("mnist.mw", "|cross_entropy", 0), &["cross_entropy["]);
    has(&c.hover("mnist.mw", "[|hidden1]))", 0), &["dim hidden1 = 1024", "`hidden1 -> c`"]);
    has(&c.hover("mnist.mw", "|adam", 0), &["optimizer adam(", "beta1"]);
    has(&c.hover("mnist.mw", "|minimize", 0), &["keyword"]);
    has(&c.hover("mnist.mw", "const |lr", 0), &["const lr = 1e-3", "`lr = 0.001`"]);
    has(&c.hover("mnist.layout", "hidden1 -> |c", 0), &["axis c = 2", "collectives a step over it"]);
    has(&c.hover("mnist.layout", "|mesh", 0), &["The axes of the mesh"]);
    // With a mistake elsewhere types are there still.
    c.change("mnist.mw", &MNIST.replace("softmax[classes](logits)", "softmax[classes](logitz)"));
    has(&c.hover("mnist.mw", "let |h2", 0), &["f32 [batch hidden2]"]);
}

#[test]
fn hints_have_the_shapes_of_values() {
    let mut c = client();
    let range = json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 99, "character": 0 } });
    let hints = c
        .ask("textDocument/inlayHint", json!({ "textDocument": { "uri": uri("mnist.mw") }, "range": range }));
    let labels: Vec<&str> = hints.as_array().unwrap().iter().map(|h| h["label"].as_str().unwrap()).collect();
    assert_eq!(
        labels,
        [
            "[batch rows cols]",
            "[batch hidden1]",
            "[batch hidden2]",
            "[batch classes]",
            "[batch]",
            "[batch classes]"
        ]
    );
    let end = c.at("mnist.mw", "let h1|", 0);
    assert!(hints.as_array().unwrap().iter().any(|h| h["position"] == end));
}

#[test]
fn a_lens_has_the_work_of_a_rule() {
    let mut c = client();
    let titles = |c: &mut Client| -> Vec<String> {
        let lenses =
            c.ask("textDocument/codeLens", json!({ "textDocument": { "uri": uri("mnist.layout") } }));
        lenses
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["command"]["title"].as_str().unwrap().to_string())
            .collect()
    };
    let shown = titles(&mut c);
    assert_eq!(shown.len(), 3);
    has(&shown[0], &["mnist: ", " collectives, ", " a step on each device"]);
    has(&shown[1], &["splits ", " image, ", "1 all-reduce over r, 3.58 MiB", " a step"]);
    has(&shown[2], &["h1.w", "1 all-reduce over c, 200 KiB a step"]);
    assert!(!shown[2].contains(" ms") && !shown[2].contains(" µs"));
    assert!(shown.iter().all(|t| !t.contains('`')), "editors show no Markdown here: {shown:?}");
    // The bytes of all rules are those of the step.
    c.change("mnist.layout", &format!("// meshwright: --machine dgx-h100\n{LAYOUT}"));
    let timed = titles(&mut c);
    has(&timed[0], &["on dgx-h100", "waiting for collectives"]);
    has(&timed[2], &["1 all-reduce over c, 200 KiB a step, ", " µs"]);
    // A rule without effect says so.
    c.change("mnist.layout", &format!("{LAYOUT}key -> r when free\nclasses -> c when free\n"));
    assert!(titles(&mut c).iter().any(|t| t.contains("splits nothing")), "{:?}", titles(&mut c));
}

fn completed(c: &mut Client, file: &str, piece: &str) -> SortedSet<String> {
    let place = c.place(file, piece, 0);
    let items = c.ask("textDocument/completion", place);
    items.as_array().unwrap().iter().map(|i| i["label"].as_str().unwrap().to_string()).collect()
}

#[test]
fn completion_knows_the_place() {
    let mut c = client();
    let mut at = |file: &str, text: &str, yes: &[&str], no: &[&str]| {
        let cursor = text.find('|').unwrap();
        let (before, after) = text.split_at(cursor);
        c.change(file, &format!("{before}{}", &after[1..]));
        // The same as the cursor, however often the piece occurs.
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap().chars().count();
        let place = json!({ "textDocument": { "uri": uri(file) }, "position": { "line": line, "character": column } });
        let items = c.ask("textDocument/completion", place);
        let found: SortedSet<&str> =
            items.as_array().unwrap().iter().map(|i| i["label"].as_str().unwrap()).collect();
        for y in yes {
            assert!(
                found.contains(y),
                "`{y}` is not offered at `{}`: {found:?}",
                before.lines().last().unwrap()
            );
        }
        for n in no {
            assert!(!found.contains(n), "`{n}` is offered at `{}`", before.lines().last().unwrap());
        }
    };
    let edit = |from: &str, to: &str| MNIST.replacen(from, to, 1);
    at("mnist.mw", &edit("mean[batch](cross", "mean[|](cross"), &["batch", "hidden1"], &["x", "relu"]);
    at(
        "mnist.mw",
        &edit("relu(dense(x", "re|lu(dense(x"),
        &["relu", "dense", "x", "softmax"],
        &["h2", "logits", "let"],
    );
    at("mnist.mw", &edit("dense(h1, ", "dense(h1, |"), &["gain = ", "hidden1", "h1"], &["logits"]);
    at(
        "mnist.mw",
        &edit("    let logits", "    |\n    let logits"),
        &["let", "param", "loss"],
        &["minimize", "relu"],
    );
    at("mnist.mw", &edit("minimize xent", "minimize |"), &["xent"], &["accuracy", "adam"]);
    at("mnist.mw", &edit("optimizer adam", "optimizer |"), &["adam", "adamw", "sgd"], &["relu"]);
    at("mnist.mw", &edit("adam(lr", "adam(|lr"), &["beta1 = ", "lr = "], &["relu"]);
    at("mnist.mw", &edit("label[batch]: i32 in classes", "label[batch]: i32 in |"), &["classes"], &["x"]);
    at(
        "mnist.mw",
        &edit("use \"std:nn\"", "// meshwright: --layout |\nuse \"std:nn\""),
        &["dp_tp"],
        &["relu"],
    );
    at(
        "mnist.mw",
        &edit("use \"std:nn\"", "size tiny { batch = 2 }\n// meshwright: --preset |\nuse \"std:nn\""),
        &["tiny"],
        &["dp_tp"],
    );
    at(
        "mnist.mw",
        &edit("use \"std:nn\"", "// meshwright: --machine |\nuse \"std:nn\""),
        &["dgx-h100"],
        &["relu"],
    );
    at("mnist.mw", &edit("cast(image, float)", "conv[rows by |](image)"), &["cols"], &["x"]);
    // A comment has nothing to complete, and neither has a name that is being declared.
    at("mnist.mw", &edit("let logits", "// any|\n    let logits"), &[], &["relu", "let"]);
    at("mnist.mw", &edit("let logits", "let l|ogits"), &[], &["relu"]);
    at("mnist.mw", MNIST.replacen("dim batch", "|dim batch", 1).as_str(), &["dim", "model"], &["relu"]);
    at("mnist.layout", "mesh r = 2, c = 2\nbatch -> |", &["r", "c"], &["hidden1"]);
    at("mnist.layout", "mesh r = 2, c = 2\n|", &["batch", "recompute", "params"], &["r"]);
    at("mnist.layout", "mesh r = 2, c = 2\nbatch -> r |", &["when"], &["c"]);
    at("mnist.layout", "mesh r = 2, c = 2\nbatch, | -> r", &["hidden1"], &["mesh"]);
    at("mnist.layout", "mesh r = 2, c = 2\nkeep params |", &["h1.w", "h1.*"], &["batch"]);
}

#[test]
fn words_have_kinds() {
    let mut c = client();
    let answer =
        c.ask("textDocument/semanticTokens/full", json!({ "textDocument": { "uri": uri("mnist.mw") } }));
    let data: Vec<u64> = answer["data"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let lines: Vec<&str> = MNIST.lines().collect();
    let (mut line, mut column) = (0, 0);
    let mut kinds = SortedSet::new();
    for t in data.chunks(5) {
        column = if t[0] == 0 { column + t[1] } else { t[1] };
        line += t[0];
        let word: String = lines[line as usize].chars().skip(column as usize).take(t[2] as usize).collect();
        kinds.insert((word, t[3], t[4]));
    }
    let is = |word: &str, kind: u64, modifiers: u64| {
        assert!(kinds.contains(&(word.into(), kind, modifiers)), "{word} {kind} {modifiers}: {kinds:?}");
    };
    is("hidden1", 6, 1);
    is("hidden1", 6, 0);
    is("h1", 7, 1);
    is("dense", 5, 0);
    is("relu", 5, 4);
    is("model", 0, 0);
    is("255", 3, 0);
    is("lr", 7, 3);
    is("\"std:nn\"", 2, 0);
}

#[test]
fn texts_have_outlines_and_folds() {
    let mut c = client();
    let outline = c.ask("textDocument/documentSymbol", json!({ "textDocument": { "uri": uri("mnist.mw") } }));
    let names: Vec<&str> = outline.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["batch", "rows", "cols", "hidden1", "hidden2", "classes", "mnist", "lr"]);
    let within: Vec<&Value> = outline[6]["children"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(
        within,
        ["image", "label", "x", "h1", "h2", "logits", "xent", "accuracy", "class", "probability"]
    );
    assert_eq!(outline[6]["children"][3]["detail"], "f32 [batch hidden1]");
    let outline =
        c.ask("textDocument/documentSymbol", json!({ "textDocument": { "uri": uri("mnist.layout") } }));
    assert_eq!(outline[2]["name"], "hidden1 -> c");
    let folds = c.ask("textDocument/foldingRange", json!({ "textDocument": { "uri": uri("mnist.mw") } }));
    assert_eq!(folds.as_array().unwrap().len(), 2);
    assert!(completed(&mut c, "mnist.layout", "batch |->").contains("hidden1"));
}
