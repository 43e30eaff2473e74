//! What an optimizer is.

use super::settings::{Choices, Setting, Wrong};
use super::update::{Trained, Update};

/// An optimizer: its spelling, its settings and its update.
#[derive(Debug)]
pub struct OptimizerDef {
    /// Its name in `optimizer NAME(…)`.
    pub name: &'static str,
    /// What it does, for `explain`.
    pub doc: &'static str,
    /// Its settings, in the order in which they may be given without names.
    pub settings: &'static [Setting],
    /// What is wrong with settings that are fine each by itself.
    pub check: fn(&Choices) -> Option<Wrong>,
    /// Writes the next value of each parameter, and of each of its moments.
    pub update: fn(&Choices, &mut Update<'_>, &[Trained<'_>]),
}

/// An optimizer with what was chosen for each of its settings.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// Which one.
    pub def: &'static OptimizerDef,
    /// Its settings.
    pub chosen: Choices,
}

impl Optimizer {
    /// In what more than numbers it differs from another one; `None` where it does not.
    pub(crate) fn differs(&self, other: &Optimizer) -> Option<String> {
        if self.def.name != other.def.name {
            return Some(format!("`{}` and `{}`", self.def.name, other.def.name));
        }
        let setting = self.chosen.apart(&other.chosen)?;
        Some(format!("`{}` with another `{setting}`", self.def.name))
    }
}

/// No settings contradict each other.
pub(super) fn any(_: &Choices) -> Option<Wrong> {
    None
}
