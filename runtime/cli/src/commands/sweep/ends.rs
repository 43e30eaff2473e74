//! Why a sweep ends before its runs do.

use crate::console::Console;
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources};

/// Why a sweep ends before its runs.
pub(super) enum SweepEnd {
    /// Something is wrong, which is not said yet.
    Wrong(Box<Diagnostic>),
    /// All is said.
    Said(Stop),
}

impl SweepEnd {
    /// Says what is not said yet.
    pub(super) fn said(self, console: &mut Console) -> Stop {
        match self {
            SweepEnd::Said(stop) => stop,
            SweepEnd::Wrong(d) => {
                console.diagnostics(&[*d], &Sources::new());
                Stop::Diagnosed
            }
        }
    }
}

impl From<Box<Diagnostic>> for SweepEnd {
    fn from(d: Box<Diagnostic>) -> Self {
        SweepEnd::Wrong(d)
    }
}

impl From<Stop> for SweepEnd {
    fn from(stop: Stop) -> Self {
        SweepEnd::Said(stop)
    }
}
