//! Errors of the folder of a run, and of the files in it.

use meshwright_diag::{Code, Diagnostic, codes};
use std::io;
use std::path::Path;

/// A folder that cannot be that of a run.
pub(crate) fn refused(path: &Path, code: Code, why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(code, format!("`{}` cannot be the folder of a run: {why}", path.display())))
}

/// A file of a run that cannot be used.
pub(crate) fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0511, format!("`{}` cannot be used: {why}", path.display())))
}

/// A file of a run whose content is wrong, with a way out.
pub(crate) fn damaged(path: &Path, why: &dyn std::fmt::Display, help: &str) -> Box<Diagnostic> {
    Box::new(unusable(path, why).help(help))
}

/// A file or folder of a run that cannot be written, with a way out.
pub(crate) fn unwritten(path: &Path, why: &io::Error) -> Box<Diagnostic> {
    let found = Diagnostic::error(codes::E0511, format!("`{}` cannot be written: {why}", path.display()));
    let first = match why.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room there",
        io::ErrorKind::FileTooLarge => "allow larger files there: `ulimit -f` shows the limit",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "make the folder writable",
        _ => return Box::new(found),
    };
    Box::new(found.help(format!("{first}, or give another folder with `--run`")))
}
