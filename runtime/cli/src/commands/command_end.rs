//! Why a command ends before its work is done.

use crate::output::console::Console;
use crate::stop::Stop;
use meshwright_diag::{Diagnostic, Sources};

/// Why a command ends early.
pub(crate) enum CommandEnd {
    /// Something is wrong, which is not said yet, and the texts that it is about.
    Wrong(Box<Diagnostic>, Sources),
    /// All is said.
    Said(Stop),
}

impl CommandEnd {
    /// Says what is not said yet.
    pub(crate) fn said(self, console: &mut Console) -> Stop {
        match self {
            CommandEnd::Said(stop) => stop,
            CommandEnd::Wrong(d, sources) => {
                console.diagnostics(&[*d], &sources);
                Stop::Diagnosed
            }
        }
    }
}

impl From<Box<Diagnostic>> for CommandEnd {
    fn from(d: Box<Diagnostic>) -> Self {
        CommandEnd::Wrong(d, Sources::new())
    }
}

impl From<Stop> for CommandEnd {
    fn from(stop: Stop) -> Self {
        CommandEnd::Said(stop)
    }
}
