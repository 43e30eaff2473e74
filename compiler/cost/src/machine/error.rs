//! Errors of machine files.

use meshwright_diag::nearest;
use std::fmt;
use std::ops::Range;

/// A machine file, or a change of a machine, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineError {
    /// What is wrong.
    pub message: String,
    /// The key that it is about, as `tier.rail.rate`, where one is known.
    pub key: Option<String>,
    /// Where in the text, in bytes.
    pub span: Option<Range<usize>>,
    /// Line and column of the span, from 1; a column counts characters.
    pub position: Option<(usize, usize)>,
    /// What may help.
    pub help: Option<String>,
}

impl MachineError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        MachineError { message: message.into(), key: None, span: None, position: None, help: None }
    }

    pub(super) fn key(self, key: impl Into<String>) -> Self {
        MachineError { key: Some(key.into()), ..self }
    }

    pub(super) fn help(self, help: Option<impl Into<String>>) -> Self {
        MachineError { help: help.map(Into::into).or(self.help), ..self }
    }

    pub(super) fn at(self, text: &str, span: Option<Range<usize>>) -> Self {
        let position = span.as_ref().map(|s| position(text, s.start));
        MachineError { span, position, ..self }
    }

    /// An error of the TOML parser. That of an unknown key has all keys that are known: the nearest is the help.
    pub(super) fn of_toml(error: &toml::de::Error, text: &str) -> Self {
        let message = error.message();
        let found = match unknown(message) {
            Some((key, known)) => {
                MachineError::new(format!("unknown key `{key}`")).help(Some(did_you_mean(key, &known)))
            }
            None => MachineError::new(message),
        };
        found.at(text, error.span())
    }
}

/// The unknown key of a parser's message, and those that are known.
pub(super) fn unknown(message: &str) -> Option<(&str, Vec<&str>)> {
    message.strip_prefix("unknown field")?;
    // Names are those between backticks: every second part.
    let mut names = message.split('`').skip(1).step_by(2);
    Some((names.next()?, names.collect()))
}

/// The nearest of the names that are known, or all.
pub(super) fn did_you_mean(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known here: {}", known.join(", ")),
    }
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "`{key}`: ")?;
        }
        f.write_str(&self.message)?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "; {help}"))
    }
}

impl std::error::Error for MachineError {}

fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}
