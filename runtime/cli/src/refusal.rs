//! What is asked for and cannot be.

use meshwright_diag::{Diagnostic, codes};

/// Something that a command is asked for and cannot be.
pub(crate) fn wrong(message: String) -> Diagnostic {
    Diagnostic::error(codes::E0516, message)
}
