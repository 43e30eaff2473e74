//! One JSON object a diagnostic. Lines and columns count from 1, columns in characters; an end is the place behind
//! the last character.

use serde::Serialize;

use super::{bytes, word};
use crate::{Diagnostic, Sources, Span};

#[derive(Serialize)]
struct Message<'a> {
    code: &'static str,
    severity: &'static str,
    message: &'a str,
    labels: Vec<Marked<'a>>,
    notes: &'a [String],
    helps: &'a [String],
    fixes: Vec<Repair<'a>>,
}

#[derive(Serialize)]
struct Place {
    file: String,
    line: usize,
    column: usize,
    end: End,
}

#[derive(Serialize)]
struct End {
    line: usize,
    column: usize,
}

#[derive(Serialize)]
struct Marked<'a> {
    #[serde(flatten)]
    place: Place,
    text: &'a str,
    primary: bool,
}

#[derive(Serialize)]
struct Repair<'a> {
    title: &'a str,
    #[serde(flatten)]
    place: Place,
    replacement: &'a str,
    sure: bool,
}

fn place(sources: &Sources, span: Span) -> Place {
    let range = bytes(sources, span);
    let start = sources.locate(Span::new(span.file, range.start, range.start));
    let end = sources.locate(Span::new(span.file, range.end, range.end));
    Place {
        file: start.file,
        line: start.line,
        column: start.column,
        end: End { line: end.line, column: end.column },
    }
}

/// One object on one line, without a line end: `code`, `severity`, `message`, `labels` (`file`, `line`, `column`,
/// `end`, `text`, `primary`), `notes`, `helps`, `fixes` (`title`, the place as in labels, `replacement`, `sure`).
pub fn json(diagnostic: &Diagnostic, sources: &Sources) -> String {
    let labels = diagnostic.labels.iter();
    let fixes = diagnostic.fixes.iter();
    let message = Message {
        code: diagnostic.code.id,
        severity: word(diagnostic.severity),
        message: &diagnostic.message,
        labels: labels
            .map(|l| Marked { place: place(sources, l.span), text: &l.text, primary: l.primary })
            .collect(),
        notes: &diagnostic.notes,
        helps: &diagnostic.helps,
        fixes: fixes
            .map(|f| Repair {
                title: &f.title,
                place: place(sources, f.span),
                replacement: &f.replacement,
                sure: f.sure,
            })
            .collect(),
    };
    // Strings, numbers and bools in structs always serialize.
    serde_json::to_string(&message).unwrap_or_default()
}
