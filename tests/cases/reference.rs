//! The generated pages of `docs/reference`: what the registry of ops, the list of codes, the tables of words and the standard
//! library say. `UPDATE=1` writes them, as it does the expectations of cases.

use crate::diff;
use meshwright_core::reference::{WordKind, pages};
use meshwright_diag::codes;
use meshwright_ops::reference::reference;
use meshwright_ops::signature::Form;
use meshwright_ops::{Family, Signature, families};
use meshwright_train::project::standard_library::layers;
use std::fmt::Write;
use std::path::PathBuf;

/// A page: its name below `docs/reference`, and its text.
pub(crate) type Generated = (&'static str, fn() -> String);

/// Every generated page.
pub(crate) const PAGES: [Generated; 4] =
    [("ops.md", ops), ("errors.md", errors), ("words.md", words), ("nn.md", nn)];

/// Writes a page anew, or compares it.
pub(crate) fn check((name, text): Generated, write: bool) -> Result<(), String> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "docs", "reference", name].iter().collect();
    let text = text();
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found == text {
        return Ok(());
    }
    if write {
        let folder = path.parent().expect("a folder");
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, &text)).expect("a writable page");
        return Ok(());
    }
    Err(format!(
        "docs/reference/{name} is out of date (- written, + got; UPDATE=1 rewrites it)\n{}",
        diff::lines(&found, &text)
    ))
}

const GENERATED: &str =
    "<!-- Generated: `UPDATE=1 cargo test -p meshwright-tests --test cases` writes it. -->\n";

/// The sections of the page of ops.
const SECTIONS: [&str; 4] =
    ["Functions of values", "Over dims", "Operators", "By syntax, or inside of gradients"];

/// In which of them a family is; each is in one.
fn section(s: &Signature) -> &'static str {
    SECTIONS[match s.form {
        Form::Named if s.groups.is_empty() => 0,
        Form::Named => 1,
        Form::Symbol => 2,
        Form::Syntax => 3,
    }]
}

/// Every family of the registry by form, and in it by name.
fn ops() -> String {
    let mut out = format!(
        "# Ops\n\n{GENERATED}\nEvery op of the language, as `meshwright explain NAME` tells of it. `float` is the program's arithmetic \
         type, `f32` or `f64`; all operands of an op have one, and a number takes the dtype of the tensor it meets. \
         [language.md](../language.md) says how dims meet.\n"
    );
    for title in SECTIONS {
        let _ = write!(out, "\n## {title}\n");
        let mut mine: Vec<&Family> = families().filter(|f| section(&f.signature) == title).collect();
        mine.sort_by_key(|f| f.name);
        for f in mine {
            let r = reference(f);
            let _ = write!(out, "\n### `{}`\n\n{}\n", r.form, r.doc);
            if !r.options.is_empty() {
                let _ = write!(out, "\n- {}\n", r.options.join("\n- "));
            }
            if !r.types.is_empty() {
                let types: Vec<String> = r.types.iter().map(|t| format!("`{t}`")).collect();
                let _ = write!(out, "\nTypes: {}. ", types.join(", "));
                out.push_str(if r.gradient { "It has a gradient.\n" } else { "It has no gradient.\n" });
            }
        }
    }
    out
}

/// Every optimizer, initializer, learning-rate schedule, built-in and keyword, of models and of layouts.
fn words() -> String {
    let mut out = format!(
        "# Optimizers, initializers, learning-rate schedules, keywords\n\n{GENERATED}\nEvery word that is neither an op nor a code, as \
         `meshwright explain NAME` tells of it. [language.md](../language.md) says how they go together.\n"
    );
    const TITLES: [(WordKind, &str); 6] = [
        (WordKind::Optimizer, "Optimizers"),
        (WordKind::Initializer, "Initializers"),
        (WordKind::LearningRate, "Learning rates"),
        (WordKind::BuiltIn, "Built-ins that are no ops"),
        (WordKind::Keyword, "Keywords"),
        (WordKind::LayoutKeyword, "Keywords of layouts"),
    ];
    let all = pages();
    for (kind, title) in TITLES {
        let _ = write!(out, "\n## {title}\n");
        for p in all.iter().filter(|p| p.kind == kind) {
            let _ = write!(out, "\n### `{}`\n\n`{}`\n\n{}\n", p.name, p.form, p.doc);
            if !p.settings.is_empty() {
                let _ = write!(out, "\n- {}\n", p.settings.join("\n- "));
            }
        }
    }
    out
}

/// Every layer of the standard library.
fn nn() -> String {
    let mut out = format!(
        "# The standard library of layers\n\n{GENERATED}\nLayers that ship with the binary: `use \"std:nn\"` at the top of a model \
         imports all of them. They are written in the language itself; `meshwright explain layer_norm` prints the text of one, to read \
         or to change in a copy. Each is tested against PyTorch with the same weights. [language.md](../language.md#layers-and-paths) \
         says how layers are called.\n"
    );
    for l in layers() {
        let _ = write!(out, "\n### `{}`\n\n{}\n", l.form, l.doc);
    }
    out
}

/// Every code with the title and the first paragraph of its page.
fn errors() -> String {
    let mut out = format!(
        "# Errors, warnings and notes\n\n{GENERATED}\nEvery code with its page; `meshwright explain E0310` prints one.\n"
    );
    const AREAS: [(&str, &str); 5] = [
        ("E01", "Syntax"),
        ("E02", "Names, types and dims"),
        ("E03", "The layout"),
        ("E04", "Partitioning and memory"),
        ("E05", "Running"),
    ];
    let mut area = "";
    for code in codes::ALL {
        let of = &code.id[..3];
        if of != area {
            let title = AREAS.iter().find(|a| a.0 == of).map_or("Others", |a| a.1);
            let _ = write!(out, "\n## {title}\n");
            area = of;
        }
        let body = code.page.split_once('\n').map_or("", |p| p.1).trim_start();
        let first = body.split("\n\n").next().unwrap_or("").split('\n').collect::<Vec<_>>().join(" ");
        let _ = write!(
            out,
            "\n### [{id}](../../compiler/diag/codes/{id}.md): {}\n\n{}\n",
            code.title(),
            first.trim(),
            id = code.id
        );
    }
    out
}
