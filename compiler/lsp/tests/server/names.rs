//! Names: where they are declared and used, and new ones.

use crate::client::{Client, uri};
use serde_json::{Value, json};

const BERT: &str = include_str!("../../../../models/bert.mw");
const LAYOUT: &str = "mesh data = 2, model = 2\nbatch -> data\nheads, d_ff, vocab -> model\nrecompute layers.attention.*\nparams word: vocab -> model\n";

fn client() -> Client {
    Client::with(&[("bert.mw", BERT), ("bert.layout", LAYOUT)])
}

/// What a place is declared as: the file, and the text from there to the end of the line.
fn declared(c: &mut Client, file: &str, piece: &str, n: usize) -> (String, String) {
    let place = c.place(file, piece, n);
    let found = c.ask("textDocument/definition", place);
    let at = &found[0];
    assert!(at.is_object(), "{piece}: {found}");
    let name = at["uri"].as_str().unwrap_or_default().to_string();
    let text = match name.strip_prefix("file:///w/") {
        Some(own) => c.text(own).to_string(),
        None => crate::client::NN.to_string(),
    };
    let line = text.lines().nth(at["range"]["start"]["line"].as_u64().unwrap() as usize).unwrap();
    (name, line[at["range"]["start"]["character"].as_u64().unwrap() as usize..].to_string())
}

#[test]
fn names_lead_to_their_declarations() {
    let mut c = client();
    let own = |rest: &str| (uri("bert.mw"), rest.to_string());
    for (file, piece, rest) in [
        ("bert.mw", "attend(|x, real) as", "x     = dropout(layer_norm(known"),
        ("bert.mw", "|attend(x, real) as", "attend(x, real) {"),
        ("bert.mw", "in |vocab", "vocab = 30_522, segments = 2"),
        ("bert.mw", "truncated_normal(0, |init)", "init = 0.02"),
        ("bert.mw", "minimize |mlm", "mlm            = sum[batch, seq](each) / sum[batch, seq](masked)"),
        ("bert.mw", "train |bert {", "bert {"),
        ("bert.mw", "    |d_ff = 512", "d_ff = 3072"),
        ("bert.layout", "heads, |d_ff", "d_ff = 3072"),
        ("bert.layout", "params |word", "word    [vocab, d_model]    = truncated_normal(0, init)"),
        ("bert.layout", "layers.|attention", "attention, rate), d_model, eps) as norm1"),
    ] {
        let (uri, line) = declared(&mut c, file, piece, 0);
        assert!(uri == own(rest).0 && line.starts_with(rest), "{piece}: {uri} {line}");
    }
    assert_eq!(
        declared(&mut c, "bert.layout", "batch -> |data", 0),
        (uri("bert.layout"), "data = 2, model = 2".into())
    );
    // In a layer its own names come first; those of the library lie on the shelf.
    assert_eq!(declared(&mut c, "bert.mw", "sum[|in](x * w)", 0).1, "in, out) {");
    let (file, line) = declared(&mut c, "bert.mw", "= |attention(q", 0);
    assert!(file == "file:///shelf/std/nn.mw" && line.starts_with("attention("), "{file} {line}");
    let place = c.place("bert.mw", "std|:nn", 0);
    assert_eq!(c.ask("textDocument/definition", place)["uri"], "file:///shelf/std/nn.mw");
}

#[test]
fn references_cross_from_model_to_layout() {
    let mut c = client();
    let mut ask = c.place("bert.mw", "in |vocab", 0);
    ask["context"] = json!({ "includeDeclaration": true });
    let found = c.ask("textDocument/references", ask);
    let of = |name: &str| found.as_array().unwrap().iter().filter(|l| l["uri"] == uri(name)).count();
    let uses = BERT.match_indices("vocab").filter(|(i, _)| !BERT[..*i].ends_with("\"")).count();
    assert_eq!((of("bert.layout"), of("bert.mw")), (2, uses));
    let place = c.place("bert.mw", "let |x ", 0);
    let places = c.ask("textDocument/documentHighlight", place);
    assert_eq!(places.as_array().unwrap().len(), 8, "{places}");
}

/// The texts of model and layout after a rename.
fn renamed(c: &mut Client, file: &str, piece: &str, new: &str) -> (String, String) {
    let mut ask = c.place(file, piece, 0);
    ask["newName"] = json!(new);
    let edit = c.ask("textDocument/rename", ask);
    (c.edited("bert.mw", &edit), c.edited("bert.layout", &edit))
}

fn refused(c: &mut Client, file: &str, piece: &str, new: &str) -> String {
    let mut ask = c.place(file, piece, 0);
    ask["newName"] = json!(new);
    let id = c.send("textDocument/rename", ask);
    format!("{:?}", c.answer(&id))
}

#[test]
fn dims_values_and_axes_are_renamed_everywhere() {
    let mut c = client();
    let (model, layout) = renamed(&mut c, "bert.layout", "|vocab", "words");
    assert_eq!((model, layout), (BERT.replace("vocab", "words"), LAYOUT.replace("vocab", "words")));
    let (model, layout) = renamed(&mut c, "bert.mw", "|word    [", "table");
    let expected = BERT
        .replace("param word    [", "param table    [")
        .replace("= word[vocab", "= table[vocab")
        .replace("h * word)", "h * table)");
    assert_eq!((model, layout), (expected, LAYOUT.replace("params word", "params table")));
    let (model, layout) = renamed(&mut c, "bert.layout", "-> |model", "tensor");
    assert_eq!((model.as_str(), layout), (BERT, LAYOUT.replace("model", "tensor")));
    // The dim of a loop is an element of paths.
    let (model, layout) = renamed(&mut c, "bert.mw", "|layers = 12, heads", "blocks");
    assert_eq!(layout, LAYOUT.replace("layers", "blocks"));
    assert!(model.contains("repeat blocks {") && !model.contains("layers ="), "{model}");
    c.change("bert.mw", &model);
    c.change("bert.layout", &layout);
    assert_eq!((c.wrong("bert.mw"), c.wrong("bert.layout")), (vec![], vec![]));
}

#[test]
fn a_rename_that_would_be_a_mistake_is_refused() {
    let mut c = client();
    for (piece, new, why) in [
        ("in |vocab", "seq", "a mistake would follow"),
        ("in |vocab", "a b", "is no name"),
        ("in |vocab", "repeat", "is a word of the language"),
        ("|layer_norm(known", "norm", "which ships"),
    ] {
        let answer = refused(&mut c, "bert.mw", piece, new);
        assert!(answer.contains(why), "{piece}: {answer}");
    }
    // The biases that `*.b` names are all those of one declaration, until there is a second one.
    let (model, _) = renamed(&mut c, "bert.mw", "param |b[out]", "bias2");
    assert!(model.contains("except *.bias2,") && model.contains("param bias2[out]"), "{model}");
    c.change(
        "bert.mw",
        &BERT.replace("project(x, d_model, d_inner) as transform", "dense(x, d_model, d_inner) as transform"),
    );
    let answer = refused(&mut c, "bert.mw", "param |b[out]", "bias2");
    assert!(answer.contains("names other declarations"), "{answer}");
    let place = c.place("bert.mw", "in |vocab", 0);
    assert_eq!(c.ask("textDocument/prepareRename", place)["placeholder"], "vocab");
    let place = c.place("bert.mw", "|input token", 0);
    assert_eq!(c.ask("textDocument/prepareRename", place), Value::Null);
}
