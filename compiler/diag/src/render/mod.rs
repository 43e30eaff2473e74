//! Diagnostics to text: for people ([`full`]), for editors and logs ([`concise`]), for programs ([`json`]).
//!
//! None of them panics, whatever the spans: places outside of their file are moved to its end, and places inside
//! of a character to its beginning.

mod concise;
mod full;
mod json;

pub use concise::{concise, concise_all};
pub use full::{full, full_all};
pub use json::json;

use crate::{Severity, Sources, Span};
use std::borrow::Cow;

/// The bytes of a span, moved into its text and onto boundaries of characters.
fn bytes(sources: &Sources, span: Span) -> std::ops::Range<usize> {
    let text = sources.text(span.file);
    let floor = |at: u32| {
        let mut at = (at as usize).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// The most of a message that is printed, in bytes: names in it may be as long as a file.
const LONGEST_MESSAGE: usize = 4 << 10;

/// A message as it is printed: of a very long one the beginning.
fn shown(message: &str) -> Cow<'_, str> {
    match message.char_indices().find(|(i, _)| *i >= LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &message[..end]).into(),
        None => message.into(),
    }
}

/// Characters that change how the text around them is shown: they steer a terminal, or turn the direction of writing.
pub fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control()
}

/// A text in which characters that steer are visible: `\u{1b}`. Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // A line of Windows ends in both.
            '\r' if rest.peek() == Some(&'\n') => out.push(c),
            c if steers(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out.into()
}

/// The word for a severity.
fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

#[cfg(test)]
mod tests;
