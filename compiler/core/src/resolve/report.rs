//! The errors so far, each once.

use meshwright_diag::{Diagnostic, MAX_REPORTED, Severity, Span, codes};
use meshwright_sorted::{SortedMap, SortedSet};

/// The diagnostics of one run. A layer is checked once per call, so its mistakes would come back with every call: of those
/// with one code and one place the first is kept. Of each severity there are at most [`MAX_REPORTED`].
#[derive(Clone, Default)]
pub(super) struct Report {
    found: Vec<Diagnostic>,
    seen: SortedSet<(&'static str, Option<Span>)>,
    counts: SortedMap<Severity, usize>,
    /// Whether a file that is used could not be read. What it declares is not known: that a name is not is no mistake of its own.
    pub(super) names_missing: bool,
}

impl Report {
    pub(super) fn push(&mut self, d: Diagnostic) {
        let place = d.labels.first().map(|l| l.span);
        if self.names_missing && d.code == codes::E0201 {
            return;
        }
        if self.is_full(d.severity) || place.is_some() && !self.seen.insert((d.code.id, place)) {
            return;
        }
        *self.counts.entry(d.severity).or_default() += 1;
        self.found.push(d);
    }

    /// Whether there is an error so far.
    pub(super) fn any_error(&self) -> bool {
        self.counts.contains_key(&Severity::Error)
    }

    /// Whether no more of a severity are reported. Searches for more errors may end: to find each, and its fix, takes a
    /// look at all names.
    pub(super) fn is_full(&self, severity: Severity) -> bool {
        self.counts.get(&severity).is_some_and(|n| *n >= MAX_REPORTED)
    }

    /// Whether no more errors are reported.
    pub(super) fn is_full_of_errors(&self) -> bool {
        self.is_full(Severity::Error)
    }

    /// All of them in source order; those without a place first.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|d| d.labels.first().map(|l| (l.span.file, l.span.start)));
        self.found
    }
}

/// `a`, `b` and `c`, each in backticks; of very many the first.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut listed: Vec<String> = names.by_ref().take(MAX_REPORTED).map(|n| format!("`{n}`")).collect();
    let more = names.count();
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    let names = listed;
    match names.as_slice() {
        [] => "none".to_string(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// `a -> b -> a`: the members of a circle and the one that it leads back to; of very many the first.
pub(super) fn circle<'a>(members: impl IntoIterator<Item = &'a str>, back: &'a str) -> String {
    let mut members = members.into_iter();
    let mut way: Vec<&str> = members.by_ref().take(MAX_REPORTED).collect();
    way.extend(members.next().map(|_| "…"));
    way.push(back);
    way.join(" -> ")
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
