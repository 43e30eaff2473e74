//! One message to a user: what, where (every place concerned), numbers, and a fix.

use crate::{Code, Span};

/// How bad it is.
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
    /// What to say there; may be empty.
    pub text: String,
    /// Whether this is the place of the mistake itself (underlined with carets).
    pub primary: bool,
}

/// A replacement of text that repairs the mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// What it does, in the imperative: "add `when free` to the second rule".
    pub title: String,
    /// What is replaced; an empty span inserts.
    pub span: Span,
    /// The new text.
    pub replacement: String,
    /// Whether it is certain to be what was meant, so that a tool may apply it unasked.
    pub sure: bool,
}

/// A message with its code, places, notes and fixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its code; `meshwright explain CODE` prints the page.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// One line, lowercase, no full stop, identifiers in backticks, with the numbers.
    pub message: String,
    /// Places, the primary ones first.
    pub labels: Vec<Label>,
    /// Further facts, a line each.
    pub notes: Vec<String>,
    /// What to do, a line each.
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

/// Whether any of them is an error.
pub fn has_errors(diagnostics: &[Diagnostic]) -> bool {
    diagnostics.iter().any(Diagnostic::is_error)
}

/// The candidate most like `name`, if one is close enough to be a likely misspelling.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(name, c), c))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, c)| c)
}
