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
