//! Optimizers: one a file, each an [`OptimizerDef`], and the one list of them.
//!
//! An optimizer reads the gradients of all parameters and writes their next values, and those of its moments, as ordinary
//! ops of the step. So it knows nothing of devices: a norm over a parameter is a sum, and whatever splits the parameter
//! makes of that sum a collective.

mod adafactor;
mod adam;
mod lamb;
mod lion;
mod settings;
mod sgd;
mod update;

pub use settings::{Accepts, Choices, Chosen, Range, Setting, Wrong};
pub use update::{Trained, Update};

/// Every optimizer. A new one is a file beside this one and its name here.
pub static OPTIMIZERS: &[&OptimizerDef] =
    &[&sgd::SGD, &adam::ADAM, &adam::ADAMW, &adafactor::ADAFACTOR, &lion::LION, &lamb::LAMB];

/// An optimizer: its spelling, its settings and its update.
#[derive(Debug)]
pub struct OptimizerDef {
    /// Its name in `optimizer NAME(…)`.
    pub name: &'static str,
    /// Its settings, in the order in which they may be given without names.
    pub settings: &'static [Setting],
    /// What is wrong with settings that are fine each by itself.
    pub check: fn(&Choices) -> Option<Wrong>,
    /// Writes the next value of each parameter, and of each of its moments.
    pub update: fn(&Choices, &mut Update<'_>, &[Trained<'_>]),
}

impl OptimizerDef {
    /// The optimizer of that name.
    pub fn find(name: &str) -> Option<&'static OptimizerDef> {
        OPTIMIZERS.iter().copied().find(|o| o.name == name)
    }
}

/// An optimizer with what was chosen for each of its settings.
#[derive(Clone, Debug)]
pub struct Optimizer {
    /// Which one.
    pub def: &'static OptimizerDef,
    /// Its settings.
    pub chosen: Choices,
}

/// No settings contradict each other.
fn any(_: &Choices) -> Option<Wrong> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_settings_are_said_once() {
        let names: BTreeSet<&str> = OPTIMIZERS.iter().map(|o| o.name).collect();
        assert_eq!(names.len(), OPTIMIZERS.len());
        for o in OPTIMIZERS {
            let settings: BTreeSet<&str> = o.settings.iter().map(|s| s.name).collect();
            assert_eq!(settings.len(), o.settings.len(), "{}", o.name);
            // The resolver asks each for these.
            assert!(settings.contains("lr") && settings.contains("weight_decay"), "{}", o.name);
        }
    }
}
