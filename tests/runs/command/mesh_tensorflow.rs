//! `docs/coming-from-mesh-tensorflow.md`: every public name of its `ops.py` has one row, and what the row says to write is
//! accepted by the compiler.

use crate::support::root;
use crate::tidy::{blocks, none, read};
use meshwright_core::Settings;
use meshwright_core::resolve::resolve;
use meshwright_diag::render::concise_all;
use meshwright_diag::{Diagnostic, Sources, has_errors};
use meshwright_sorted::SortedMap;
use meshwright_syntax::parse_model;

/// What stands in place of a snippet where the language lacks something.
const NOT_YET: &str = "[not yet](language.md#parsed-but-not-implemented)";
/// The names, one a line behind `def` or `class`; its first lines say where they are from.
const NAMES: &str = include_str!("../mesh_tensorflow_ops.txt");
const PAGE: &str = "docs/coming-from-mesh-tensorflow.md";
/// The line of the page's model in whose place a snippet stands.
const PLACE: &str = "    // a snippet stands here, as a statement or as `let here = …`\n";

/// A row of the tables.
struct Row {
    line: usize,
    /// What it is of, in Mesh TensorFlow.
    names: Vec<String>,
    /// What to write.
    snippets: Vec<String>,
    /// The second cell, and the third.
    says: String,
    remark: String,
}

/// What stands between backticks.
fn spans(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// The rows of the tables of names, of which the heads tell which they are.
fn rows() -> Vec<Row> {
    let text = read(&root().join(PAGE));
    let (mut out, mut inside) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        if line == "| Mesh TensorFlow | here | |" {
            inside = true;
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && !line.starts_with("|---") {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [names, says, rest @ ..] = cells.as_slice() else { panic!("{PAGE}:{}: {line}", i + 1) };
            assert!(rest.len() < 2, "{PAGE}:{}: a row of {} cells", i + 1, cells.len());
            out.push(Row {
                line: i + 1,
                names: spans(names),
                snippets: spans(says),
                says: (*says).into(),
                remark: rest.concat(),
            });
        }
    }
    out
}

#[test]
fn every_name_of_mesh_tensorflow_has_one_row() {
    let listed = |kind: &str| NAMES.lines().filter_map(|l| l.strip_prefix(kind)).collect::<Vec<_>>();
    let (functions, classes) = (listed("def "), listed("class "));
    assert_eq!((functions.len(), classes.len()), (149, 57));
    let mut at: SortedMap<&str, Vec<usize>> =
        functions.into_iter().chain(classes).map(|n| (n, Vec::new())).collect();
    assert_eq!(at.len(), 206, "a name is listed twice");
    let mut problems = Vec::new();
    for row in &rows() {
        for name in &row.names {
            match at.get_mut(name.as_str()) {
                Some(lines) => lines.push(row.line),
                None => problems.push(format!("{PAGE}:{}: Mesh TensorFlow has no `{name}`", row.line)),
            }
        }
    }
    for (name, lines) in at.iter().filter(|n| n.1.len() != 1) {
        problems.push(format!("{PAGE}: `{name}` has {} rows: {lines:?}", lines.len()));
    }
    none(problems);
}

#[test]
fn a_row_says_what_to_write_or_why_nothing() {
    let mut problems = Vec::new();
    for row in rows().iter().filter(|r| r.snippets.is_empty()) {
        if !["not needed", NOT_YET].contains(&row.says.as_str()) || row.remark.is_empty() {
            problems.push(format!(
                "{PAGE}:{}: neither a snippet nor `not needed` or {NOT_YET} and why",
                row.line
            ));
        }
    }
    none(problems);
}

/// The page's model with a snippet in it: a dim, a statement, or the value of a `let`.
fn with(model: &str, snippet: &str) -> String {
    if snippet.starts_with("dim ") {
        return format!("{snippet}\n{model}");
    }
    let first = snippet.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
    let statement = ["let", "param", "state", "input", "output", "loss", "metric"].contains(&first)
        || snippet.strip_prefix(first).is_some_and(|rest| rest.starts_with(" = "));
    let line = if statement { snippet.into() } else { format!("let here = {snippet}") };
    model.replace(PLACE, &format!("    {line}\n"))
}

/// What the compiler says against a model: nothing where it accepts it.
fn against(text: &str) -> String {
    let mut sources = Sources::new();
    let id = sources.add("model.mw", text);
    let (file, mut found) = parse_model(id, text);
    if let Some(file) = &file {
        let (_, said) = resolve(file, None, &Settings::default(), &mut |path, _| panic!("no file `{path}`"));
        found.extend(said);
    }
    let errors: Vec<Diagnostic> = found.into_iter().filter(|d| has_errors(std::slice::from_ref(d))).collect();
    concise_all(&errors, &sources)
}

#[test]
fn snippets_for_mesh_tensorflow_compile() {
    let text = read(&root().join(PAGE));
    let model = blocks(&text).into_iter().find(|b| b.0 == "mw" && b.1.contains(PLACE));
    let (_, model) = model.expect("the model in which snippets stand");
    // A snippet that is wrong is told, so silence means something.
    assert!(against(&with(&model, "x + nothing")).contains("E0201"));
    assert!(against(&with(&model, "let x = y")).contains("error"));
    let (mut problems, mut compiled) = (Vec::new(), 0);
    for row in rows() {
        for snippet in &row.snippets {
            compiled += 1;
            let said = against(&with(&model, snippet));
            if !said.is_empty() {
                problems.push(format!("{PAGE}:{}: `{snippet}`\n{said}", row.line));
            }
        }
    }
    assert!(compiled > 100, "{compiled} snippets");
    none(problems);
}
