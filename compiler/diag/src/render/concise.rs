//! One line a diagnostic.

use super::{printable, shown, word};
use crate::{Diagnostic, Sources};

/// `file:line:col: error[E0310]: message`, without a line end; without a place if there is none.
pub fn concise(diagnostic: &Diagnostic, sources: &Sources) -> String {
    let message = shown(&diagnostic.message).replace(['\n', '\r'], " ");
    let head = format!("{}[{}]: {message}", word(diagnostic.severity), diagnostic.code.id);
    let label = diagnostic.labels.iter().find(|l| l.primary).or(diagnostic.labels.first());
    match label {
        Some(label) => {
            let at = sources.locate(label.span);
            printable(&format!("{}:{}:{}: {head}", at.file, at.line, at.column)).into_owned()
        }
        None => printable(&head).into_owned(),
    }
}

/// All of them, a line each.
pub fn concise_all(diagnostics: &[Diagnostic], sources: &Sources) -> String {
    diagnostics.iter().map(|d| concise(d, sources) + "\n").collect()
}
