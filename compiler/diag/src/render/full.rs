//! With the source, in rustc's manner.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Patch, Renderer, Snippet};

use super::bytes;
use crate::{Diagnostic, FileId, Fix, Severity, Sources};

/// The message with its places, notes, helps and fixes, ending in a line end; `color` adds ANSI codes.
pub fn full(diagnostic: &Diagnostic, sources: &Sources, color: bool) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let mut main = Group::with_title(level.primary_title(diagnostic.message.as_str()).id(diagnostic.code.id));
    for snippet in snippets(diagnostic, sources) {
        main = main.element(snippet);
    }
    for note in &diagnostic.notes {
        main = main.element(Level::NOTE.message(note.as_str()));
    }
    for help in &diagnostic.helps {
        main = main.element(Level::HELP.message(help.as_str()));
    }
    let mut report = vec![main];
    report.extend(diagnostic.fixes.iter().map(|f| fix(f, sources)));
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let text = renderer.decor_style(DecorStyle::Ascii).render(&report);
    text.lines().map(str::trim_end).fold(String::new(), |out, line| out + line + "\n")
}

/// One snippet a file: the file of the first primary place comes first, then the others as they appear.
fn snippets<'a>(diagnostic: &'a Diagnostic, sources: &'a Sources) -> Vec<Snippet<'a, Annotation<'a>>> {
    let mut files: Vec<FileId> = Vec::new();
    let primary = diagnostic.labels.iter().filter(|l| l.primary);
    for label in primary.chain(&diagnostic.labels) {
        if !files.contains(&label.span.file) {
            files.push(label.span.file);
        }
    }
    let annotations = |file: FileId| {
        let labels = diagnostic.labels.iter().filter(move |l| l.span.file == file);
        labels.map(|label| {
            let kind = if label.primary { AnnotationKind::Primary } else { AnnotationKind::Context };
            let text = (!label.text.is_empty()).then_some(label.text.as_str());
            kind.span(bytes(sources, label.span)).label(text)
        })
    };
    let snippet = |file: FileId| Snippet::source(sources.text(file)).path(sources.name(file));
    files.into_iter().map(|file| snippet(file).annotations(annotations(file))).collect()
}

fn fix<'a>(fix: &'a Fix, sources: &'a Sources) -> Group<'a> {
    let file = fix.span.file;
    let range = bytes(sources, fix.span);
    let group = Group::with_title(Level::HELP.secondary_title(fix.title.as_str()));
    // A patch that changes nothing has nothing to show.
    if sources.text(file).get(range.clone()) == Some(fix.replacement.as_str()) {
        return group;
    }
    let patch = Patch::new(range, fix.replacement.as_str());
    group.element(Snippet::source(sources.text(file)).path(sources.name(file)).patch(patch))
}

/// All of them, a blank line between each two.
pub fn full_all(diagnostics: &[Diagnostic], sources: &Sources, color: bool) -> String {
    diagnostics.iter().map(|d| full(d, sources, color)).collect::<Vec<_>>().join("\n")
}
