//! With the source, in rustc's manner.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{
    Annotation, AnnotationKind, Element, Group, Level, Origin, Patch, Renderer, Snippet,
};
use std::ops::Range;

use super::{bytes, printable, shown};
use crate::{Diagnostic, FileId, Fix, Label, Severity, Sources, Span};

/// The message with its places, notes, helps and fixes, ending in a line end; `color` adds ANSI codes.
pub fn full(diagnostic: &Diagnostic, sources: &Sources, color: bool) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let message = shown(&diagnostic.message);
    let mut main = Group::with_title(level.primary_title(message).id(diagnostic.code.id));
    for snippet in snippets(diagnostic, sources) {
        main = main.element(snippet);
    }
    for note in &diagnostic.notes {
        main = main.element(Level::NOTE.message(printable(note)));
    }
    for help in &diagnostic.helps {
        main = main.element(Level::HELP.message(printable(help)));
    }
    let mut report = vec![main];
    report.extend(diagnostic.fixes.iter().map(|f| fix(f, sources)));
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let text = renderer.decor_style(DecorStyle::Ascii).render(&report);
    text.lines().map(str::trim_end).fold(String::new(), |out, line| out + line + "\n")
}

/// One snippet a file: the file of the first primary place comes first, then the others as they appear. Of a large file it
/// has the lines from the first place to the last; where that is much, each place has a snippet of its own, of a few words.
fn snippets<'a>(diagnostic: &'a Diagnostic, sources: &'a Sources) -> Vec<Element<'a>> {
    let mut files: Vec<FileId> = Vec::new();
    let primary = diagnostic.labels.iter().filter(|l| l.primary);
    for label in primary.chain(&diagnostic.labels) {
        if !files.contains(&label.span.file) {
            files.push(label.span.file);
        }
    }
    let mut out: Vec<Element<'a>> = Vec::new();
    for file in files {
        let labels: Vec<&Label> = diagnostic.labels.iter().filter(|l| l.span.file == file).collect();
        let all = labels
            .iter()
            .map(|l| bytes(sources, l.span))
            .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let Some(excerpt) = Excerpt::of_lines(sources, file, all.unwrap_or_default()) else {
            for label in labels {
                let excerpt = Excerpt::of_words(sources, file, bytes(sources, label.span));
                let at = sources.locate(label.span);
                let origin = Origin::path(printable(sources.name(file))).line(at.line).char_column(at.column);
                out.push(origin.into());
                out.push(excerpt.snippet().annotation(excerpt.annotation(label, sources)).into());
            }
            continue;
        };
        let annotations = labels.into_iter().map(|label| excerpt.annotation(label, sources));
        out.push(excerpt.snippet().path(printable(sources.name(file))).annotations(annotations).into());
    }
    out
}

/// A text of which messages show all, in bytes; and the most that they show of a larger one.
const SHOWN: usize = 16 << 10;
/// What is shown before a place in a very long line, and how much of a place and what follows it.
const AROUND: (usize, usize) = (60, 240);

/// A part of a file.
struct Excerpt<'a> {
    text: &'a str,
    /// Its first byte in the file.
    from: usize,
    /// The line that it begins in, from 1.
    line: usize,
}

impl<'a> Excerpt<'a> {
    /// The lines of a range, with those next to them; `None` where they are too long.
    fn of_lines(sources: &'a Sources, file: FileId, range: Range<usize>) -> Option<Self> {
        let text = sources.text(file);
        if text.len() <= SHOWN {
            return Some(Excerpt { text, from: 0, line: 1 });
        }
        let before = text[..range.start].rmatch_indices('\n').nth(1).map_or(0, |(i, _)| i + 1);
        let after =
            text[range.end..].match_indices('\n').nth(1).map_or(text.len(), |(i, _)| range.end + i + 1);
        let line = sources.line(Span::new(file, before, before));
        (after - before <= SHOWN).then(|| Excerpt { text: &text[before..after], from: before, line })
    }

    /// A few words around the beginning of a range, on one line.
    fn of_words(sources: &'a Sources, file: FileId, range: Range<usize>) -> Self {
        let text = sources.text(file);
        let floor = |mut at: usize| {
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let line = text[..range.start].rfind('\n').map_or(0, |i| i + 1);
        let from = line.max(floor(range.start.saturating_sub(AROUND.0)));
        let until = floor((range.start + AROUND.1).min(text.len()));
        let until = text[range.start..until].find('\n').map_or(until, |i| range.start + i);
        let line = sources.line(Span::new(file, from, from));
        Excerpt { text: &text[from..until], from, line }
    }

    fn snippet<T: Clone>(&self) -> Snippet<'a, T> {
        Snippet::source(self.text).line_start(self.line)
    }

    /// A label, as far as it lies in the excerpt.
    fn annotation<'l>(&self, label: &'l Label, sources: &Sources) -> Annotation<'l> {
        let kind = if label.primary { AnnotationKind::Primary } else { AnnotationKind::Context };
        let within = |at: usize| at.saturating_sub(self.from).min(self.text.len());
        let range = bytes(sources, label.span);
        let text = (!label.text.is_empty()).then(|| printable(&label.text));
        kind.span(within(range.start)..within(range.end)).label(text)
    }
}

fn fix<'a>(fix: &'a Fix, sources: &'a Sources) -> Group<'a> {
    let file = fix.span.file;
    let range = bytes(sources, fix.span);
    let group = Group::with_title(Level::HELP.secondary_title(fix.title.as_str()));
    // A patch that changes nothing has nothing to show.
    if sources.text(file).get(range.clone()) == Some(fix.replacement.as_str()) {
        return group;
    }
    // Nor has a line of which nobody sees all.
    let Some(excerpt) = Excerpt::of_lines(sources, file, range.clone()) else { return group };
    let within = |at: usize| at - excerpt.from;
    let patch = Patch::new(within(range.start)..within(range.end), fix.replacement.as_str());
    group.element(excerpt.snippet().path(printable(sources.name(file))).patch(patch))
}

/// All of them, a blank line between each two.
pub fn full_all(diagnostics: &[Diagnostic], sources: &Sources, color: bool) -> String {
    diagnostics.iter().map(|d| full(d, sources, color)).collect::<Vec<_>>().join("\n")
}
