//! Optimizers: one a file, each an [`OptimizerDef`], and the one list of them.
//!
//! An optimizer reads the gradients of all parameters and writes their next values, and those of its moments, as ordinary
//! ops of the step. So it knows nothing of devices: a norm over a parameter is a sum, and whatever splits the parameter
//! makes of that sum a collective.

mod adafactor;
mod adam;
mod definition;
mod lamb;
mod lion;
mod settings;
mod sgd;
mod update;

pub use definition::{Optimizer, OptimizerDef};
pub use settings::{Accepts, Choices, Chosen, Range, Setting, Wrong};
pub(crate) use update::origin_of;
pub use update::{AVERAGE, Trained, Update};

/// Every optimizer. A new one is a file beside this one and its name here.
pub static OPTIMIZERS: &[&OptimizerDef] =
    &[&sgd::SGD, &adam::ADAM, &adam::ADAMW, &adafactor::ADAFACTOR, &lion::LION, &lamb::LAMB];

/// The optimizer of that name.
pub fn find(name: &str) -> Option<&'static OptimizerDef> {
    OPTIMIZERS.iter().copied().find(|o| o.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_sorted::SortedSet;

    #[test]
    fn names_and_settings_are_said_once() {
        let names: SortedSet<&str> = OPTIMIZERS.iter().map(|o| o.name).collect();
        assert_eq!(names.len(), OPTIMIZERS.len());
        for o in OPTIMIZERS {
            let settings: SortedSet<&str> = o.settings.iter().map(|s| s.name).collect();
            assert_eq!(settings.len(), o.settings.len(), "{}", o.name);
            // The resolver asks each for these.
            assert!(settings.contains("lr") && settings.contains("weight_decay"), "{}", o.name);
        }
    }
}
