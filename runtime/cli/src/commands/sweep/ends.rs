//! Why a sweep ends before its runs do.

use crate::console::Console;
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources};

/// Why a sweep ends before its runs.
pub(super) enum Ends {
    /// Something is wrong, which is not said yet.
    Wrong(Box<Diagnostic>),
    /// All is said.
    Said(Stop),
}

impl Ends {
    /// Says what is not said yet.
    pub(super) fn said(self, console: &mut Console) -> Stop {
        match self {
            Ends::Said(stop) => stop,
            Ends::Wrong(d) => {
                console.diagnostics(&[*d], &Sources::new());
                Stop::Diagnosed
            }
        }
    }
}

impl From<Box<Diagnostic>> for Ends {
    fn from(d: Box<Diagnostic>) -> Self {
        Ends::Wrong(d)
    }
}

impl From<Stop> for Ends {
    fn from(stop: Stop) -> Self {
        Ends::Said(stop)
    }
}
