//! Why a run ended without a result.

use meshwright_diag::Diagnostic;
use meshwright_exec::ExecError;

/// What went wrong: something to be said to the user, or a device that failed.
#[derive(Debug)]
pub enum Failure {
    /// Errors, with whatever else there is to say.
    Diagnostics(Vec<Diagnostic>),
    /// A device failed.
    Exec(ExecError),
    /// Another process of the run failed, and says why.
    Elsewhere,
}

impl From<Box<Diagnostic>> for Failure {
    fn from(d: Box<Diagnostic>) -> Self {
        Failure::Diagnostics(vec![*d])
    }
}

impl From<Diagnostic> for Failure {
    fn from(d: Diagnostic) -> Self {
        Failure::Diagnostics(vec![d])
    }
}

impl From<Vec<Diagnostic>> for Failure {
    fn from(d: Vec<Diagnostic>) -> Self {
        Failure::Diagnostics(d)
    }
}

impl From<ExecError> for Failure {
    fn from(e: ExecError) -> Self {
        Failure::Exec(e)
    }
}
