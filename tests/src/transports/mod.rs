//! One suite for all transports: every collective, dtype and fold, on the subgroups of a mesh, with uneven and empty
//! pieces, after pauses at random, alone and several in flight; against a naive reference. And devices that fail in ways
//! that need a process each ([`faults`]).
//!
//! Every device of a world calls [`run`]; each checks what it receives. A transport leaves out what it cannot do by a list
//! of [`Skip`]s with reasons.

mod async_collectives;
mod collectives;
pub mod faults;
#[cfg(feature = "mpi")]
mod processes;
mod values;

use meshwright_comm::{CommError, Group, Tag, Transport};
use meshwright_plan::{Axis, Mesh};
use std::time::Duration;

/// Cases that a transport leaves out.
#[derive(Clone, Copy, Debug)]
pub struct Skip {
    /// What their names begin with.
    pub cases: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// How the suite is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuiteSettings {
    /// Floats fold from left to right, so that results have the bits of the reference; otherwise they may differ by
    /// rounding.
    pub exact: bool,
    /// Half types are rounded after each addition; otherwise once, at the end.
    pub rounds_each: bool,
    /// Longest pause of a device before a call.
    pub pause: Duration,
    /// What is left out.
    pub skips: &'static [Skip],
}

/// What became of a case on this device: its name, and what is wrong.
pub type Outcome = (String, Result<(), String>);

/// Runs all cases on this device. All devices of the world must call it with the same settings. It ends early where a
/// collective fails, since the others cannot be met again then.
pub fn run(transport: &mut dyn Transport, settings: SuiteSettings) -> Vec<Outcome> {
    let mut device = Device { transport, settings, sequence: 0, outcomes: Vec::new(), broken: false };
    device.all();
    device.outcomes
}

/// What the transport in question leaves out: nothing.
pub const NO_SKIPS: &[Skip] = &[];

struct Device<'t> {
    transport: &'t mut dyn Transport,
    settings: SuiteSettings,
    sequence: u64,
    outcomes: Vec<Outcome>,
    broken: bool,
}

/// Why a case failed.
enum Wrong {
    /// The result; the case goes on.
    Result(String),
    /// The call.
    Call(CommError),
}

impl From<CommError> for Wrong {
    fn from(e: CommError) -> Self {
        Wrong::Call(e)
    }
}

type Checked = Result<(), Wrong>;

impl Device<'_> {
    fn all(&mut self) {
        let n = self.transport.size();
        let mesh = match n {
            4 => Mesh::new([("r", 2), ("c", 2)]),
            6 => Mesh::new([("r", 2), ("c", 3)]),
            n => Mesh::new([("r", 1), ("c", n)]),
        };
        let orders: [(&str, &[u8]); 5] =
            [("alone", &[]), ("r", &[0]), ("c", &[1]), ("r,c", &[0, 1]), ("c,r", &[1, 0])];
        for (name, axes) in orders {
            let axes: Vec<Axis> = axes.iter().map(|a| Axis(*a)).collect();
            if let Ok(group) = Group::of_mesh(&mesh, self.transport.rank(), &axes) {
                collectives::all(self, &group, name);
            }
        }
        async_collectives::all(self);
    }

    /// Runs a case, unless it is left out or no case can be run any more.
    fn case(&mut self, name: String, case: impl FnOnce(&mut Self) -> Checked) {
        if self.broken || self.settings.skips.iter().any(|skip| name.starts_with(skip.cases)) {
            return;
        }
        let result = match case(self) {
            Ok(()) => Ok(()),
            Err(Wrong::Result(e)) => Err(e),
            Err(Wrong::Call(e)) => {
                self.broken = true;
                Err(e.to_string())
            }
        };
        self.outcomes.push((name, result));
    }

    /// A tag and a number for a call, after a pause.
    fn next(&mut self) -> (Tag, usize) {
        self.sequence += 1;
        let mut rng = values::SuiteRng::of(&[self.transport.rank(), self.sequence as usize, 99]);
        // Half of the calls come at once, so that every order of arrival occurs.
        if !self.settings.pause.is_zero() && rng.below(2) == 0 {
            std::thread::sleep(self.settings.pause.mul_f64(rng.below(1000) as f64 / 1000.0));
        }
        (tag(self.sequence), self.sequence as usize)
    }
}

/// The tag of a call in tests.
pub fn tag(sequence: u64) -> Tag {
    Tag::new(sequence, format!("v{sequence}"), 10 + sequence as u32)
}

/// Plays the part of a device that is a process; `args` are those after `transport-suite MPI|...`. Tests start it.
pub fn main(args: &[std::ffi::OsString]) -> std::process::ExitCode {
    #[cfg(feature = "mpi")]
    return processes::main(args);
    #[cfg(not(feature = "mpi"))]
    {
        use std::io::Write as _;
        let _nobody_listens = writeln!(std::io::stderr(), "built without processes: {args:?}");
        std::process::ExitCode::from(2)
    }
}
