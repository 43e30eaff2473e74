//! Whether the memory of a device is enough for a Plan.

use crate::machine::Machine;
use serde::{Serialize, Serializer};

/// The part of the memory above which a step is tight: allocators may have to try again, which takes time.
const TIGHT: f64 = 0.8;

/// A verdict: the buffers of a Plan fit, or not, into the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// Yes.
    Yes,
    /// Yes, but more than four fifths are taken.
    Tight {
        /// Bytes that are left.
        free: u64,
    },
    /// No: the Plan's buffers alone are larger than the memory.
    No {
        /// Bytes that are missing.
        missing: u64,
    },
}

impl Fits {
    /// Whether a Plan with this peak fits. What a device reserves makes it tight, but only the memory itself is a limit: what
    /// others run at its edge is not refused.
    pub fn of(peak: u64, machine: &Machine) -> Fits {
        let (memory, usable) = (machine.device.memory as u64, machine.usable());
        match peak {
            _ if peak > memory => Fits::No { missing: peak - memory },
            _ if peak as f64 > TIGHT * usable => Fits::Tight { free: memory - peak },
            _ => Fits::Yes,
        }
    }

    /// `yes`, `tight` or `no`.
    pub fn name(self) -> &'static str {
        match self {
            Fits::Yes => "yes",
            Fits::Tight { .. } => "tight",
            Fits::No { .. } => "no",
        }
    }
}

/// As its name.
impl Serialize for Fits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_more_than_the_memory_does_not_fit() {
        let machine = Machine::read(crate::shipped_machines::find("dgx-h100").unwrap()).unwrap();
        let fits = |bytes: u64| Fits::of(bytes, &machine);
        assert_eq!((fits(0), fits(65_600_000_000)), (Fits::Yes, Fits::Yes));
        assert_eq!(fits(65_600_000_001), Fits::Tight { free: 19_399_999_999 });
        // The reserve of 3 GB is for estimates: it refuses nothing.
        assert_eq!(fits(85_000_000_000), Fits::Tight { free: 0 });
        assert_eq!((fits(85_000_000_001), fits(85_000_000_001).name()), (Fits::No { missing: 1 }, "no"));
    }
}
