//! The one style of model files and layout files.
//!
//! The tree says how a text is structured, and the tokens say what is written: the formatter walks the tree and hands on
//! the tokens one by one, so that none can get lost, and with each the comments that stand before it. Only commas
//! behind the last element of a list and `;` between rules are dropped, and commas between the entries of a `size`
//! added. What comes out is scanned and parsed again before anybody sees it.

mod doc;
mod expr;
mod layout;
mod model;
mod runs;
mod writer;

pub use doc::WIDTH;
use meshwright_diag::{Diagnostic, FileId, Outcome, Span, codes};

use crate::scan::{Language, Scan, scan};
use crate::{MAX_BYTES, parse_layout, parse_model};

/// A model file in the one style. `None` where it has errors, which are the parser's.
pub fn format_model(file: FileId, text: &str) -> Outcome<String> {
    let (tree, mut found) = parse_model(file, text);
    let (Some(tree), Some(scanned)) = (tree, scan(file, text, Language::Model, &mut Vec::new())) else {
        return (None, found);
    };
    let out = model::print(&tree, text, &scanned);
    let kept = out.and_then(|out| {
        let (again, _) = parse_model(file, &out);
        same(file, text, &scanned, &out, Language::Model).filter(|()| again.is_some()).map(|()| out)
    });
    if kept.is_none() {
        found.push(refused(file));
    }
    (kept, found)
}

/// A layout file in the one style. `None` where it has errors, which are the parser's.
pub fn format_layout(file: FileId, text: &str) -> Outcome<String> {
    let (tree, mut found) = parse_layout(file, text);
    let (Some(tree), Some(scanned)) = (tree, scan(file, text, Language::Layout, &mut Vec::new())) else {
        return (None, found);
    };
    let out = layout::print(&tree, text, &scanned);
    let kept = out.and_then(|out| {
        let again = parse_layout(file, &out).0?;
        let whole = again.items.len() == tree.items.len();
        same(file, text, &scanned, &out, Language::Layout).filter(|()| whole).map(|()| out)
    });
    if kept.is_none() {
        found.push(refused(file));
    }
    (kept, found)
}

/// Whether `after` has the tokens and the comments of `before`, but for separators that the style sets.
fn same(file: FileId, text: &str, before: &Scan, after: &str, language: Language) -> Option<()> {
    let scanned = scan(file, after, language, &mut Vec::new())?;
    let tokens = |scan: &Scan, text: &str| -> Vec<String> {
        let all = scan.tokens.iter().map(|t| text[t.start..t.end].to_string());
        all.filter(|t| t != "," && t != ";").collect()
    };
    let comments = |scan: &Scan, text: &str| -> Vec<String> {
        scan.comments.iter().map(|c| writer::comment(&text[c.start..c.end])).collect()
    };
    let kept = tokens(before, text) == tokens(&scanned, after)
        && comments(before, text) == comments(&scanned, after);
    kept.then_some(())
}

fn refused(file: FileId) -> Diagnostic {
    Diagnostic::error(codes::E0108, "this file cannot be formatted without changing what it says")
        .at(Span::new(file, 0, 0), "")
        .note(format!("it may be longer than {MAX_BYTES} bytes when formatted"))
        .help("it is left as it is; if it is not that large, this is a bug in Meshwright: please report it")
}
