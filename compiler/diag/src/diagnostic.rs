//! One message to a user: what, where (every place concerned), numbers, and a fix.

use crate::{Code, Span};

/// Severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The run cannot go on.
    Error,
    /// Probably not what was meant; the run goes on.
    Warning,
    /// Worth knowing.
    Note,
}

/// A place with a word about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// Text at the place; may be empty.
    pub text: String,
    /// True for the place of the mistake itself, underlined with carets.
    pub primary: bool,
}

/// A replacement of text that repairs the mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// Its effect, in the imperative: "add `when free` to the second rule".
    pub title: String,
    /// The replaced text; an empty span inserts.
    pub span: Span,
    /// The new text.
    pub replacement: String,
    /// True if it is certain to be what was meant, so that a tool may apply it unasked.
    pub sure: bool,
}

/// A message with its code, places, notes and fixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its code; `meshwright explain CODE` prints the page.
    pub code: Code,
    /// Its severity.
    pub severity: Severity,
    /// One line, lowercase, no full stop, identifiers in backticks, with the numbers.
    pub message: String,
    /// Places, the primary ones first.
    pub labels: Vec<Label>,
    /// Further facts, a line each.
    pub notes: Vec<String>,
    /// Advice, a line each.
    pub helps: Vec<String>,
    /// Replacements that repair it.
    pub fixes: Vec<Fix>,
}

/// A result with what there is to say about it. `None` where errors left nothing to go on with.
pub type Outcome<T> = (Option<T>, Vec<Diagnostic>);

impl Diagnostic {
    /// An error with `message`.
    pub fn error(code: Code, message: impl Into<String>) -> Self {
        Self::of(Severity::Error, code, message)
    }

    /// A warning with `message`.
    pub fn warning(code: Code, message: impl Into<String>) -> Self {
        Self::of(Severity::Warning, code, message)
    }

    /// A note with `message`.
    pub fn note_message(code: Code, message: impl Into<String>) -> Self {
        Self::of(Severity::Note, code, message)
    }

    fn of(severity: Severity, code: Code, message: impl Into<String>) -> Self {
        Diagnostic {
            code,
            severity,
            message: message.into(),
            labels: Vec::new(),
            notes: Vec::new(),
            helps: Vec::new(),
            fixes: Vec::new(),
        }
    }

    /// Adds the place of the mistake.
    pub fn at(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into(), primary: true });
        self
    }

    /// Adds another place that has to do with it.
    pub fn and(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into(), primary: false });
        self
    }

    /// Adds a fact.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// Adds advice.
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.helps.push(text.into());
        self
    }

    /// Adds a replacement that repairs it; `sure` if a tool may apply it unasked.
    pub fn fix(
        mut self,
        title: impl Into<String>,
        span: Span,
        replacement: impl Into<String>,
        sure: bool,
    ) -> Self {
        self.fixes.push(Fix { title: title.into(), span, replacement: replacement.into(), sure });
        self
    }

    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The most errors, warnings or notes that one part of the compiler reports for one program: nobody reads more, and what is
/// wrong in thousands of places is one mistake.
pub const MAX_REPORTED: usize = 50;

/// Whether any of them is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(Diagnostic::is_error)
}

/// A name that was likely meant where another was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether it is certain enough that a tool may write it unasked.
    pub sure: bool,
}

impl<'a> Near<'a> {
    /// The only name that can be meant.
    pub fn only(name: &'a str) -> Self {
        Near { name, sure: true }
    }
}

impl std::fmt::Display for Near<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl From<Near<'_>> for String {
    fn from(near: Near<'_>) -> String {
        near.name.to_string()
    }
}

/// The candidate most like `name`, if one is close enough to be a likely misspelling. It is sure where one letter of five
/// or more is left out, added or changed, or two neighbors are exchanged in a name of any length above two; where the
/// digits are the same (`h1` is not `h2` misspelled); and where no other candidate is as near. Short names are mostly names
/// of other things: `tan` is not `tanh`, nor `elu` `relu`.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<Near<'a>> {
    if name.len() > LONGEST_COMPARED {
        return None;
    }
    let limit = (name.chars().count() / 3).max(1);
    let letters = Letters::of(name);
    let mut near: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter(|c| letters.at_most(c, limit))
        .map(|c| (strsim::damerau_levenshtein(name, c), c))
        .filter(|(d, _)| *d <= limit)
        .collect();
    near.sort_unstable();
    near.dedup();
    let (distance, best) = *near.first()?;
    let alone = near.get(1).is_none_or(|second| second.0 > distance);
    let sorted = |s: &str, keep: fn(&char) -> bool| {
        let mut all: Vec<char> = s.chars().filter(keep).collect();
        all.sort_unstable();
        all
    };
    let digits = |s: &str| s.chars().filter(char::is_ascii_digit).collect::<String>();
    let exchanged = sorted(name, |_| true) == sorted(best, |_| true);
    let long = name.chars().count().min(best.chars().count()) >= 5;
    let sure = distance == 1
        && alone
        && digits(name) == digits(best)
        && best.chars().count() > 2
        && (long || exchanged);
    Some(Near { name: best, sure })
}

/// The longest name, in bytes, that is compared with others: comparing takes the product of both lengths.
const LONGEST_COMPARED: usize = 200;

/// The count of each byte in a name: a quick bound of distances, for the case of many candidates.
struct Letters {
    counts: [i16; 256],
    /// The most bytes that one edit changes, as far as this name goes.
    edit: usize,
}

impl Letters {
    fn of(name: &str) -> Self {
        let mut counts = [0; 256];
        name.bytes().for_each(|b| counts[usize::from(b)] += 1);
        Letters { counts, edit: if name.is_ascii() { 1 } else { 4 } }
    }

    /// Whether the distance to `other` may be `limit` or less.
    fn at_most(&self, other: &str, limit: usize) -> bool {
        if other.len() > 2 * LONGEST_COMPARED {
            return false;
        }
        let mut counts = self.counts;
        other.bytes().for_each(|b| counts[usize::from(b)] -= 1);
        let (missing, more) = counts.iter().fold((0, 0), |(missing, more), n| {
            (missing + usize::from(n.max(&0).unsigned_abs()), more + usize::from(n.min(&0).unsigned_abs()))
        });
        let edit = if other.is_ascii() { self.edit } else { 4 };
        missing.max(more) <= edit * limit
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_slips_of_the_pen_are_sure() {
        let names =
            ["batch", "hidden1", "hidden2", "relu", "tanh", "r", "data", "softmax", "key", "rows", "cols"];
        for (written, meant) in [
            ("bacth", Some(("batch", true))),
            ("batchs", Some(("batch", true))),
            ("softmx", Some(("softmax", true))),
            ("rleu", Some(("relu", true))),
            ("dtaa", Some(("data", true))),
            ("elu", Some(("relu", false))),
            ("tan", Some(("tanh", false))),
            ("hidden3", Some(("hidden1", false))),
            ("hiden1", Some(("hidden1", true))),
            ("hidden", Some(("hidden1", false))),
            ("sofftmaxx", Some(("softmax", false))),
            ("q", Some(("r", false))),
            ("yek", None),
        ] {
            let near = nearest(written, names).map(|n| (n.name, n.sure));
            assert_eq!(near, meant, "{written}");
        }
    }
}
