//! Sessions: edits, what is wrong, fixes, formatting, cancellation, and the end.

use crate::client::{Client, uri};
use meshwright_lsp::SessionEnd;
use serde_json::{Value, json};

const MODEL: &str = "use \"std:nn\"\n\ndim batch = 8, d = 4, h = 6\n\nmodel m {\n    input x[batch, d]: float\n    let y = dense(x, d, h)\n    loss l = mean[batch, h](y * y)\n}\n\ntrain m {\n    minimize l\n    optimizer sgd(lr = 0.1)\n}\n";
const LAYOUT: &str = "mesh data = 2, model = 2\nbatch -> data\nh -> model\n";

#[test]
fn what_is_wrong_follows_the_edits() {
    let mut c = Client::with(&[("m.mw", MODEL), ("m.layout", LAYOUT)]);
    assert_eq!((c.wrong("m.mw"), c.wrong("m.layout")), (vec![], vec![]));
    c.change("m.mw", &MODEL.replace("y * y", "y * z"));
    assert_eq!(c.wrong("m.mw"), ["E0201 nothing is called `z` here"]);
    let d = c.found[&uri("m.mw")][0].clone();
    assert_eq!(d["range"]["start"], c.at("m.mw", "y * |z", 0));
    assert_eq!(d["codeDescription"]["href"], "file:///shelf/codes/E0201.md");
    // An edit of a piece, after a character of two UTF-16 units.
    c.change("m.mw", &format!("// 𝄞\n{}", MODEL.replace("mean[batch, h]", "/*")));
    assert!(!c.wrong("m.mw").is_empty());
    c.change("m.mw", MODEL);
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
    // A mistake in the layout shows in the layout, and a placement that is an error in the model.
    c.change("m.layout", &LAYOUT.replace("h -> model", "hh -> modle"));
    let wrong = c.wrong("m.layout");
    assert!(wrong[0].starts_with("E0301 no mesh axis `modle`"), "{wrong:?}");
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
    assert_eq!(c.end(), SessionEnd::Shutdown);
}

#[test]
fn edits_are_positions_in_utf_16() {
    let mut c = Client::with(&[("m.mw", &format!("// 𝄞→x\n{MODEL}"))]);
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
    let edit = |line, from, to, text: &str| {
        let range =
            json!({ "start": { "line": line, "character": from }, "end": { "line": line, "character": to } });
        json!({ "range": range, "text": text })
    };
    // The comment becomes a dim whose name follows the two units of its first character.
    let changes = [edit(0, 0, 6, "dim "), edit(0, 4, 5, "q = 2")];
    let d = json!({ "uri": uri("m.mw"), "version": 9 });
    c.tell("textDocument/didChange", json!({ "textDocument": d, "contentChanges": changes }));
    let outline = c.ask("textDocument/documentSymbol", json!({ "textDocument": { "uri": uri("m.mw") } }));
    assert_eq!(outline[0]["name"], "q", "{outline}");
}

#[test]
fn fixes_are_actions() {
    let text = MODEL.replace("y * y", "yy * y").replace("minimize l", "minimise l");
    let mut c = Client::with(&[("m.mw", &text)]);
    let wrong = c.wrong("m.mw");
    assert!(wrong.iter().any(|w| w.starts_with("E0101")), "{wrong:?}");
    let whole = json!({ "start": { "line": 0, "character": 0 }, "end": { "line": 99, "character": 0 } });
    let ask =
        json!({ "textDocument": { "uri": uri("m.mw") }, "range": whole, "context": { "diagnostics": [] } });
    let actions = c.ask("textDocument/codeAction", ask);
    let fix = actions.as_array().unwrap().iter().find(|a| a["title"] == "write `minimize`").unwrap().clone();
    assert_eq!(fix["kind"], "quickfix");
    let fixed = c.edited("m.mw", &fix["edit"]);
    assert_eq!(fixed, text.replace("minimise", "minimize"));
    c.change("m.mw", &fixed.replace("yy", "batsh").replace("mean[batch,", "mean[batsh,"));
    assert_eq!(c.wrong("m.mw").len(), 2);
    // All that are sure, at once.
    let only = json!({ "diagnostics": [], "only": ["source.fixAll"] });
    let ask = json!({ "textDocument": { "uri": uri("m.mw") }, "range": whole, "context": only });
    let actions = c.ask("textDocument/codeAction", ask);
    assert_eq!(actions.as_array().unwrap().len(), 1, "{actions}");
    let fixed = c.edited("m.mw", &actions[0]["edit"]);
    assert!(fixed.contains("mean[batch, h]"), "{fixed}");
}

#[test]
fn formatting_is_that_of_the_command() {
    let mut c = Client::with(&[("m.mw", &MODEL.replace("let y = ", "let   y=")), ("m.layout", "h->model\n")]);
    let options = json!({ "tabSize": 4, "insertSpaces": true });
    let edits = c.ask(
        "textDocument/formatting",
        json!({ "textDocument": { "uri": uri("m.mw") }, "options": options }),
    );
    assert_eq!(c.edited("m.mw", &edits), MODEL);
    assert_eq!(edits.as_array().unwrap().len(), 1);
    let edits = c.ask(
        "textDocument/formatting",
        json!({ "textDocument": { "uri": uri("m.layout") }, "options": options }),
    );
    assert_eq!(c.edited("m.layout", &edits), "h -> model\n");
    // What has errors stays.
    c.change("m.mw", "model {");
    let id = c.send(
        "textDocument/formatting",
        json!({ "textDocument": { "uri": uri("m.mw") }, "options": options }),
    );
    assert!(format!("{:?}", c.answer(&id)).contains("with errors is not formatted"));
}

#[test]
fn options_in_a_comment_choose_layout_and_sizes() {
    let text = format!("// meshwright: --layout 'h -> c' --mesh c=2 --dim batch=12\n{MODEL}");
    let mut c = Client::with(&[("m.mw", &text)]);
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
    let shown = c.hover("m.mw", "let |y", 0);
    assert!(
        shown.contains("batch = 12, h = 6") && shown.contains("h:c") && shown.contains("12 x 3"),
        "{shown}"
    );
    // What is wrong with them shows where they stand.
    c.change("m.mw", &text.replace("--mesh c=2", "--mesh c=two --fast"));
    let wrong = c.wrong("m.mw");
    assert!(
        wrong.iter().any(|w| w.contains("`--fast`")) && wrong.iter().any(|w| w.starts_with("E0101")),
        "{wrong:?}"
    );
    assert!(c.found[&uri("m.mw")].iter().all(|d| d["range"]["start"]["line"] == 0));
    // A machine that is not there, too; and the settings of the client stand behind a comment.
    c.change("m.mw", &text.replace("--dim", "--machine none --dim"));
    assert!(c.wrong("m.mw")[0].contains("no machine that ships is called `none`"));
    c.change("m.mw", MODEL);
    c.tell(
        "workspace/didChangeConfiguration",
        json!({ "settings": { "meshwright": { "options": "--dim batch=16" } } }),
    );
    assert!(c.hover("m.mw", "let |y", 0).contains("batch = 16"));
}

#[test]
fn a_file_that_changes_is_read_again() {
    let used = "layer twice(x) {\n    return 2 * x\n}\n";
    let main = MODEL.replace("std:nn", "parts.mw").replace("h]", "d]");
    let main = main.replace("let y = dense(x, d, h)", "param w[d] = 1\n    let y = twice(x) * w");
    let mut c = Client::start(&[("m.mw", &main), ("parts.mw", used)]);
    c.open("m.mw", &main);
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
    c.open("parts.mw", &used.replace("2 * x", "2 * z"));
    assert_eq!(c.wrong("parts.mw"), ["E0201 nothing is called `z` here"]);
    // As it is on disk once it is closed.
    c.tell("textDocument/didClose", json!({ "textDocument": { "uri": uri("parts.mw") } }));
    assert_eq!(c.wrong("parts.mw"), Vec::<String>::new());
    // One that is not there is looked for again.
    c.change("m.mw", &main.replace("parts.mw", "later.mw"));
    assert!(c.wrong("m.mw")[0].starts_with("E0515 cannot read `later.mw`"));
    c.open("later.mw", used);
    assert_eq!(c.wrong("m.mw"), Vec::<String>::new());
}

#[test]
fn requests_can_be_taken_back_and_wrong_ones_are_errors() {
    let mut c = Client::with(&[("m.mw", MODEL)]);
    let place = c.place("m.mw", "let |y", 0);
    let ids: Vec<_> = (0..50).map(|_| c.send("textDocument/hover", place.clone())).collect();
    let last = ids.last().unwrap().clone();
    c.tell("$/cancelRequest", json!({ "id": 51 }));
    let answer = format!("{:?}", c.answer(&last));
    assert!(answer.contains("-32800") || answer.contains("contents"), "{answer}");
    let id = c.send("textDocument/nothing", Value::Null);
    assert!(format!("{:?}", c.answer(&id)).contains("there is no method"));
    let id = c.send("textDocument/hover", json!({ "position": 7 }));
    assert!(format!("{:?}", c.answer(&id)).contains("-32602"));
    c.tell("textDocument/didChange", json!({ "nonsense": true }));
    assert!(!c.hover("m.mw", "let |y", 0).is_empty());
    c.ask("shutdown", Value::Null);
    let id = c.send("textDocument/hover", place);
    assert!(format!("{:?}", c.answer(&id)).contains("shut down"));
}

#[test]
fn several_folders_have_models_of_their_own() {
    let other = MODEL.replace("model m", "model n").replace("train m", "train n");
    let mut c = Client::with(&[
        ("a/m.mw", MODEL),
        ("b/n.mw", &other),
        ("a/x.layout", LAYOUT),
        ("b/y.layout", "mesh c = 2\nd -> c\n"),
    ]);
    assert!(c.hover("a/m.mw", "let |y", 0).contains("x.layout"));
    assert!(c.hover("b/n.mw", "let |y", 0).contains("y.layout"));
    assert_eq!(c.wrong("b/y.layout"), Vec::<String>::new());
    // A layout without a model is read for its syntax.
    c.open("c/z.layout", "mesh data = 2\nwhatever -> data\n");
    assert_eq!(c.wrong("c/z.layout"), Vec::<String>::new());
    c.change("c/z.layout", "mesh data = 2\nwhatever ->\n");
    assert!(c.wrong("c/z.layout")[0].starts_with("E0101"));
    // One that a model in another folder chooses belongs to that.
    c.change("a/m.mw", &format!("// meshwright: --layout ../c/z.layout\n{MODEL}"));
    c.change("c/z.layout", "mesh data = 2\nbatch -> dat\n");
    assert!(c.wrong("c/z.layout")[0].starts_with("E0301 no mesh axis `dat`"));
}
