//! Machine files as text: reading with errors that name the place, and writing.

use super::Machine;
use super::check::{At, check};
use super::error::MachineError;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// Where the value of a path stands, or the last table on the way to it.
fn find(text: &str, path: &[At]) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let (first, rest) = path.split_first()?;
    let mut value = document.get_ref().get(first.text())?;
    for at in rest {
        let next = match (value.get_ref(), at) {
            (DeValue::Table(t), at) => t.get(at.text()),
            (DeValue::Array(a), At::Item(i, _)) => a.get(*i),
            _ => None,
        };
        let Some(next) = next else { break };
        value = next;
    }
    Some(value.span())
}

impl Machine {
    /// Reads a machine file. Each key is known, and each number in its range.
    pub fn read(text: &str) -> Result<Machine, MachineError> {
        let machine: Machine = toml::from_str(text).map_err(|e| MachineError::of_toml(&e, text))?;
        match check(&machine) {
            Ok(()) => Ok(machine),
            Err(wrong) => Err(MachineError::from(&wrong).at(text, find(text, &wrong.path))),
        }
    }

    /// As a machine file.
    pub fn to_toml(&self) -> Result<String, MachineError> {
        toml::to_string(self).map_err(|e| MachineError::new(e.to_string()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use super::*;
    use crate::engine::EngineKind;
    use crate::estimate::family_error;

    /// A machine of two levels.
    pub(crate) const SMALL: &str = include_str!("small.machine.toml");

    fn error(from: &str, to: &str) -> String {
        assert!(SMALL.contains(from), "{from}");
        Machine::read(&SMALL.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read_and_written() {
        let machine = Machine::read(SMALL).unwrap();
        assert_eq!((machine.device.units, machine.devices(), machine.usable()), (16, 64, 7e9));
        assert_eq!(machine.tier[1].line[1].members, (2, usize::MAX));
        assert_eq!((machine.error("matmul"), machine.error("other")), (0.2, 0.15));
        // Without a calibration too.
        let band = |family| family_error(&machine, &EngineKind::Cuda, family);
        assert_eq!([band("matmul"), band("collective")], [0.2, 0.15]);
        assert_eq!(Machine::read(&machine.to_toml().unwrap()).unwrap(), machine);
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest() {
        let text = "unknown key `kernal`; did you mean `kernel`?";
        assert_eq!(error("kernel = 5e-6", "kernal = 5e-6"), format!("line 10, column 1: {text}"));
        let text = error("rate = 100e9", "speed = 100e9");
        assert!(
            text.starts_with("line 44, column 1: unknown key `speed`; known here: name, ops, members,"),
            "{text}"
        );
        assert!(error("memory = 8e9", "memory = \"big\"").starts_with("line 7, column 10: invalid type"));
        assert!(error("units = 16", "").contains("missing field `units`"));
        assert!(error("[device]", "[device").starts_with("line 4, column 8: "));
        let text = error("[device.matrix.f32]", "[device.matrix.f23]");
        assert_eq!(
            text,
            "line 14, column 1: `device.matrix.f23`: is not a dtype of matrix products; did you mean `f32`?"
        );
    }

    #[test]
    fn every_number_has_a_range() {
        for (from, to, expected) in RANGES {
            let text = error(from, to);
            assert!(text.contains(expected), "{to}: {text}\nexpected {expected}");
        }
    }

    /// A change of the file, and what is said of it.
    const RANGES: &[(&str, &str, &str)] = &[
        ("version = 1", "version = 2", "line 1, column 11: `version`: is 2; this is Meshwright's version 1"),
        (
            "memory = 8e9",
            "memory = 0",
            "line 7, column 10: `device.memory`: is 0; a number from 1 to 1e30 is expected",
        ),
        ("memory = 8e9", "memory = inf", "`device.memory`: is inf; a number from 1 to 1e30 is expected"),
        (
            "reserve = 1e9",
            "reserve = 9e9",
            "`device.reserve`: is 9e9; less than the memory, 8e9, is expected",
        ),
        ("units = 16", "units = 0", "`device.units`: is 0; at least 1 is expected"),
        (
            "sustained = 0.9",
            "sustained = 1.1",
            "`device.sustained`: is 1.1; a share from 1e-6 to 1 is expected",
        ),
        ("straggle = 0.01", "straggle = -1.0", "`device.straggle`: is -1; a share from 0 to 1 is expected"),
        (
            "best = 8e12",
            "best = 12e12",
            "`device.matrix.f32.best`: is 1.2e13; at most the peak, 1e13, is expected",
        ),
        ("[1e9, 2e11]", "[1e5, 2e11]", "`device.stream.rates`: bytes are not ascending"),
        ("tiles = [[", "tiles = [[0, 1, 0.1], [", "`device.product.tiles.0`: a tile has no elements"),
        (
            "size = 64",
            "size = 8",
            "line 57, column 8: `tier.rail.size`: is 8; more than the level below, 8, is expected",
        ),
        (
            "units = 4",
            "units = 17",
            "`tier.rail.units`: is 17; at most the units of the device, 16, is expected",
        ),
        (
            "rate = 100e9",
            "rate = 0.0",
            "line 44, column 8: `tier.link.line.ring.rate`: is 0; a number from 1 to 1e30 is expected",
        ),
        ("hop = 1e-6", "hop = -1.0", "`tier.link.hop`: is -1; a number from 0 to 1e6 is expected"),
        ("members = [5, 8]", "members = [8, 5]", "`tier.link.line.switch.members`: from 8 to 5"),
        (
            "members = [5, 8]",
            "members = [1, 5]",
            "`tier.link.line.switch.members`: a collective has at least 2 members",
        ),
        ("\"all_gather\", ", "", "line 31, column 1: `tier.link`: no line is for `all_gather` of 2 members"),
        (
            "\"all_gather\", ",
            "\"all_gathr\", ",
            "`tier.link.line.ring.ops`: `all_gathr` is no collective; did you mean `all_gather`?",
        ),
        ("buffer = 65536", "", "`tier.rail.reduce.buffer`: store-and-forward needs one"),
        ("levels = 2", "levels = 0", "`tier.rail.reduce.levels`: is 0; at least 1 is expected"),
        ("hours = 5e4", "hours = nan", "`failures.hours`: is NaN; a number from 1e-6 to 1e12 is expected"),
        (
            "matmul = 0.2",
            "matmul = 0.1",
            "`errors.matmul`: is 0.1; below 0.15, a `[calibration]` has to say where it was measured",
        ),
        (
            "matmul = 0.2",
            "matmull = 0.2",
            "`errors.matmull`: is not a family of work; did you mean `matmul`?",
        ),
        (
            "[errors]",
            "[calibration]\ndate = \"\"\non = \"\"\nengine = \"mpy\"\nplans = 1\nmean_error = 0\nmax_error = 0\n[errors]",
            "`calibration.engine`: is `mpy`; one of threads, mpi, cuda is expected",
        ),
        ("name = \"rail\"", "name = \"link\"", "`tier.link`: two levels have this name"),
    ];

    /// Numbers with which times of a model would overflow, or be no numbers.
    #[test]
    fn numbers_that_overflow_are_refused() {
        let amount = "a number from 1 to 1e30 is expected";
        let seconds = "is 1e308; a number from 0 to 1e6 is expected";
        let share = "a share from 1e-6 to 1 is expected";
        for (from, to, expected) in [
            ("kernel = 5e-6", "kernel = 1e308", seconds),
            ("hop = 1e-6", "hop = 1e308", seconds),
            ("p2p_latency = 5e-6", "p2p_latency = 1e308", seconds),
            ("latency = 10e-6", "latency = 1e308", seconds),
            ("per_member = 2e-6", "per_member = 1e308", seconds),
            ("link = 1e-6", "link = 1e308", seconds),
            ("restart = 600", "restart = 1e308", seconds),
            ("checkpoint = 30", "checkpoint = 1e308", seconds),
            ("memory = 8e9", "memory = 1e308", amount),
            ("peak = 10e12", "peak = 1e308", amount),
            ("best = 8e12", "best = 1e-308", amount),
            ("[1e6, 1e11]", "[1e6, 1e-308]", amount),
            ("[1e6, 1e11]", "[1e-308, 1e11]", amount),
            ("rate = 100e9", "rate = 1e-308", amount),
            ("rate = 12e9", "rate = 1e-308", amount),
            ("p2p = 90e9", "p2p = 1e-308", amount),
            ("cap = 60e9", "cap = 1e-308", amount),
            ("frame = 4096", "frame = 1e-308", amount),
            ("buffer = 65536", "buffer = 1e-308", amount),
            ("smallest = 1e6", "smallest = 1e308", "a number from 0 to 1e30 is expected"),
            ("forward = [4e12, 500]", "forward = [1e-308, 500]", amount),
            ("forward = [4e12, 500]", "forward = [4e12, 1e308]", "a number from 0 to 1e12 is expected"),
            ("fill = 400", "fill = 1e308", "a number from 0 to 1e12 is expected"),
            ("issue = 0.85", "issue = 1e-308", share),
            ("split = 0.92", "split = 1e-308", share),
            ("sustained = 0.9", "sustained = 1e-308", share),
            ("[64, 64, 0.5]", "[64, 64, 1e-308]", "the rate is 1e-308; a share from 1e-6 to 1 is expected"),
            ("hours = 5e4", "hours = 1e-308", "a number from 1e-6 to 1e12 is expected"),
            ("[device.stream]", "[device.scalar]\nsimple = 1e308\n[device.stream]", "from 1e-30 to 1e6"),
            ("[device.stream]", "[device.families]\npool = 1e-308\n[device.stream]", amount),
            ("forward = [4e12, 500]", "dropout = 1e308\nforward = [4e12, 500]", "a number from 1 to 1e6"),
            ("forward = [4e12, 500]", "widths = [[nan, 0.5]]\nforward = [4e12, 500]", "is NaN"),
            ("forward = [4e12, 500]", "widths = [[64, 1e-308]]\nforward = [4e12, 500]", share),
        ] {
            let text = error(from, to);
            assert!(text.contains(expected), "{to}: {text}\nexpected {expected}");
        }
    }

    #[test]
    fn a_cpu_has_seconds_of_every_family() {
        let text = error("kind = \"gpu\"", "kind = \"cpu\"");
        assert!(text.ends_with("`device.scalar`: a CPU's file has seconds of `simple`"), "{text}");
        let text = error("[device.stream]", "[device.scalar]\nexponentail = 1e-9\n[device.stream]");
        assert!(text.ends_with("is not a family of functions; did you mean `exponential`?"), "{text}");
    }
}
