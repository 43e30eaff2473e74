//! What has been found wrong so far, each mistake once.

use meshwright_diag::{Diagnostic, Span};
use std::collections::BTreeSet;

/// The diagnostics of one run. A layer is checked once per call, so its mistakes would come back with every call: of those
/// with one code and one place the first is kept.
#[derive(Default)]
pub(super) struct Report {
    found: Vec<Diagnostic>,
    seen: BTreeSet<(&'static str, Option<Span>)>,
}

impl Report {
    pub(super) fn push(&mut self, d: Diagnostic) {
        let place = d.labels.first().map(|l| l.span);
        if place.is_none() || self.seen.insert((d.code.id, place)) {
            self.found.push(d);
        }
    }

    /// Whether there is an error so far.
    pub(super) fn any_error(&self) -> bool {
        meshwright_diag::has_errors(&self.found)
    }

    /// All of them in source order; those without a place first.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|d| d.labels.first().map(|l| (l.span.file, l.span.start)));
        self.found
    }
}

/// `a`, `b` and `c`, each in backticks.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|n| format!("`{n}`")).collect();
    match names.as_slice() {
        [] => "none".to_string(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// `1 argument`, `2 arguments`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The candidate most like `name`. Of one letter nothing can be said: every other letter is as near.
pub(super) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<meshwright_diag::Near<'a>> {
    if name.chars().count() < 2 { None } else { meshwright_diag::nearest(name, candidates) }
}
