//! Errors of the folder of a run, and of the files in it.

use meshwright_diag::{Code, Diagnostic, codes};
use std::path::Path;

/// A folder that cannot be that of a run.
pub(crate) fn refused(path: &Path, code: Code, why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(code, format!("`{}` cannot be the folder of a run: {why}", path.display())))
}

/// A file of a run that cannot be used.
pub(crate) fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0511, format!("`{}` cannot be used: {why}", path.display())))
}
