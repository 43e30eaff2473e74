//! What is wrong with texts: the compiler's diagnostics as editors show them.

use super::place::location;
use crate::project::{Analysis, Projects};
use crate::snapshot::Snapshot;
use crate::text::{LanguageKind, LineIndex, path_of, uri_of};
use lsp_types::{
    CodeDescription, DiagnosticRelatedInformation, DiagnosticSeverity, Location, NumberOrString, Position,
    Range, Uri,
};
use meshwright_diag::{Diagnostic, FileId, Label, Severity, Sources, Span};
use meshwright_syntax::read_layout;
use std::path::Path;

/// The diagnostics of one text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TextDiagnostics {
    /// The text.
    pub(crate) uri: Uri,
    /// Its version, where it is open.
    pub(crate) version: Option<i32>,
    /// All that is wrong.
    pub(crate) diagnostics: Vec<lsp_types::Diagnostic>,
}

/// What is wrong with the open texts, and with those that they use.
pub(crate) fn all(snapshot: &Snapshot, projects: &mut Projects) -> Vec<TextDiagnostics> {
    let mut out: Vec<TextDiagnostics> = Vec::new();
    for (path, document) in snapshot.documents.iter() {
        let Some(uri) = uri_of(path) else { continue };
        let at = entry(&mut out, uri.clone());
        out[at].version = Some(document.version);
        match projects.of(snapshot, path) {
            Some(analysis) => {
                for (uri, d) in of_analysis(snapshot, &analysis) {
                    let at = entry(&mut out, uri);
                    // Several models may use one text.
                    if !out[at].diagnostics.contains(&d) {
                        out[at].diagnostics.push(d);
                    }
                }
            }
            None if document.kind == LanguageKind::Layout => {
                out[at].diagnostics.extend(alone(snapshot, path, &document.text));
            }
            None => {}
        }
    }
    out
}

fn entry(all: &mut Vec<TextDiagnostics>, uri: Uri) -> usize {
    all.iter().position(|f| f.uri == uri).unwrap_or_else(|| {
        all.push(TextDiagnostics { uri, version: None, diagnostics: Vec::new() });
        all.len() - 1
    })
}

/// A layout without a model: its syntax is known.
fn alone(snapshot: &Snapshot, path: &Path, text: &str) -> Vec<lsp_types::Diagnostic> {
    let mut sources = Sources::new();
    let file = sources.add(path.display().to_string(), text);
    let lines = LineIndex::of(text);
    let place = |span: Span| {
        let range = lines.range(text, span.start as usize, span.end as usize);
        (span.file == file).then(|| Some(Location { uri: uri_of(path)?, range })).flatten()
    };
    let found = read_layout(FileId(0), text).1;
    found.iter().filter_map(|d| Some(written(snapshot, d, &place)?.1)).collect()
}

fn of_analysis(snapshot: &Snapshot, a: &Analysis) -> Vec<(Uri, lsp_types::Diagnostic)> {
    let comment = comment(a);
    let place = |span: Span| location(snapshot, a, span);
    // What is said of an option is said at the comment that has it; else where the model begins.
    let start = || Some(Location { uri: uri_of(&a.pair.model)?, range: Range::default() });
    let fallback = comment.clone().or_else(start);
    let found = a.diagnostics().filter_map(|d| {
        let somewhere = d.labels.iter().any(|l| place(l.span).is_some());
        match somewhere {
            true => written(snapshot, d, &place),
            false => written(snapshot, d, &|span| place(span).or_else(|| fallback.clone())).or_else(|| {
                let at = d.clone().at(Span::default(), "");
                written(snapshot, &at, &|_| fallback.clone())
            }),
        }
    });
    let mut out: Vec<_> = found.collect();
    let machine = a.placed().and_then(|p| p.estimate.as_ref()).and_then(|e| e.as_ref().err());
    let wrong = a.pair.choice.wrong.iter().chain(machine);
    out.extend(wrong.filter_map(|message| {
        let at = fallback.clone()?;
        let d = lsp_types::Diagnostic {
            range: at.range,
            severity: Some(DiagnosticSeverity::WARNING),
            source: Some("meshwright".into()),
            message: message.clone(),
            ..lsp_types::Diagnostic::default()
        };
        Some((at.uri, d))
    }));
    out
}

/// The place of the options of a comment.
fn comment(a: &Analysis) -> Option<Location> {
    let choice = &a.pair.choice;
    let (file, at) = choice.file.as_ref().zip(choice.at.clone())?;
    let id = a.file(file)?;
    let range = a.files[id.0 as usize].lines().range(a.sources.text(id), at.start, at.end);
    Some(Location { uri: uri_of(file)?, range })
}

/// A diagnostic at its first place that an editor can show, with the URI of the text.
fn written(
    snapshot: &Snapshot,
    d: &Diagnostic,
    place: &dyn Fn(Span) -> Option<Location>,
) -> Option<(Uri, lsp_types::Diagnostic)> {
    let (main, at) = d.labels.iter().find_map(|l| Some((l, place(l.span)?)))?;
    let related = d.labels.iter().filter(|l| !std::ptr::eq(*l, main)).filter_map(|l| {
        let message = if l.text.is_empty() { "here".to_string() } else { l.text.clone() };
        Some(DiagnosticRelatedInformation { location: place(l.span)?, message })
    });
    let related: Vec<_> = related.collect();
    let severity = match d.severity {
        Severity::Error => DiagnosticSeverity::ERROR,
        Severity::Warning => DiagnosticSeverity::WARNING,
        Severity::Note => DiagnosticSeverity::INFORMATION,
    };
    let page = snapshot.host.shelve(&format!("codes/{}.md", d.code.id), d.code.page);
    let shown = lsp_types::Diagnostic {
        range: visible(at.range),
        severity: Some(severity),
        code: Some(NumberOrString::String(d.code.id.into())),
        code_description: page.and_then(|p| uri_of(&p)).map(|href| CodeDescription { href }),
        source: Some("meshwright".into()),
        message: message(d, main),
        related_information: (!related.is_empty()).then_some(related),
        ..lsp_types::Diagnostic::default()
    };
    Some((at.uri, shown))
}

/// The message with what the command prints below it.
fn message(d: &Diagnostic, main: &Label) -> String {
    let mut out = d.message.clone();
    if !main.text.is_empty() {
        out.push_str(&format!("\n{}", main.text));
    }
    d.notes.iter().for_each(|n| out.push_str(&format!("\nnote: {n}")));
    d.helps
        .iter()
        .chain(d.fixes.iter().map(|f| &f.title))
        .for_each(|h| out.push_str(&format!("\nhelp: {h}")));
    out
}

/// An empty range shows as nothing: it covers a character.
fn visible(range: Range) -> Range {
    if range.start != range.end {
        return range;
    }
    let end = Position { character: range.end.character + 1, ..range.end };
    Range { end, ..range }
}

/// True for a diagnostic that stands in a range of a text.
pub(super) fn meets(snapshot: &Snapshot, a: &Analysis, d: &Diagnostic, uri: &Uri, range: Range) -> bool {
    let path = path_of(uri);
    let at = |l: &Label| {
        let found = location(snapshot, a, l.span)?;
        (path_of(&found.uri) == path).then(|| visible(found.range))
    };
    d.labels.iter().filter_map(at).any(|r| r.start <= range.end && range.start <= r.end)
}
