//! Ranges of the numbers of a machine.

use super::error::{MachineError, did_you_mean};
use super::{
    Device, DeviceKind, InNetwork, Machine, NetworkLine, ReduceMode, SCALAR_FAMILIES, Tier, UNCALIBRATED,
    VERSION,
};
use meshwright_plan::{CollectiveKind, Portion};
use std::borrow::Cow;

/// Dtypes of matrix products.
const DTYPES: [&str; 7] = ["f64", "f32", "tf32", "bf16", "f16", "fp8", "fp4"];

/// Engines that `calibrate` measures.
const ENGINES: [&str; 3] = ["threads", "mpi", "cuda"];

/// Collectives that every level has lines for: all members send and receive all, or a piece for each.
fn has_lines(kind: &CollectiveKind) -> bool {
    let traffic = kind.traffic();
    matches!(traffic.receive, Portion::Whole | Portion::Pieces) && !traffic.rooted
}

/// A part of the path to a value.
#[derive(Clone, Debug)]
pub(super) enum At {
    /// A key of a table.
    Key(Cow<'static, str>),
    /// A place in an array, and the name of what is there.
    Item(usize, String),
}

impl At {
    pub(super) fn text(&self) -> &str {
        match self {
            At::Key(key) => key,
            At::Item(_, name) => name,
        }
    }
}

/// A value that is out of its range.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) path: Vec<At>,
    message: String,
    help: Option<String>,
}

impl From<&Wrong> for MachineError {
    fn from(wrong: &Wrong) -> MachineError {
        let key: Vec<&str> = wrong.path.iter().map(At::text).collect();
        MachineError::new(&*wrong.message).key(key.join(".")).help(wrong.help.clone())
    }
}

type Checked = Result<(), Wrong>;

/// The table whose values are checked.
#[derive(Clone, Default)]
struct CheckedTable(Vec<At>);

impl CheckedTable {
    fn key(&self, key: impl Into<Cow<'static, str>>) -> CheckedTable {
        CheckedTable(self.0.iter().cloned().chain([At::Key(key.into())]).collect())
    }

    fn item(&self, index: usize, name: &str) -> CheckedTable {
        CheckedTable(self.0.iter().cloned().chain([At::Item(index, name.into())]).collect())
    }

    fn wrong(&self, message: impl Into<String>) -> Wrong {
        Wrong { path: self.0.clone(), message: message.into(), help: None }
    }

    fn expect(&self, key: &'static str, value: f64, holds: bool, expected: &str) -> Checked {
        match holds {
            true => Ok(()),
            false => Err(self.key(key).wrong(format!("is {}; {expected} is expected", number(value)))),
        }
    }

    fn positive(&self, key: &'static str, value: f64) -> Checked {
        self.expect(key, value, value.is_finite() && value > 0.0, "a positive number")
    }

    fn not_negative(&self, key: &'static str, value: f64) -> Checked {
        self.expect(key, value, value.is_finite() && value >= 0.0, "a number from 0 on")
    }

    fn share(&self, key: &'static str, value: f64) -> Checked {
        self.expect(key, value, (0.0..=1.0).contains(&value), "a share from 0 to 1")
    }

    fn part(&self, key: &'static str, value: f64) -> Checked {
        self.expect(key, value, value > 0.0 && value <= 1.0, "a share above 0 and up to 1")
    }

    fn at_least(&self, key: &'static str, value: usize, least: usize) -> Checked {
        self.expect(key, value as f64, value >= least, &format!("at least {least}"))
    }

    /// The key of a table of anything, which has to be one of these.
    fn one_of(&self, name: &str, known: &[&str], what: &str) -> Checked {
        if known.contains(&name) {
            return Ok(());
        }
        let help = Some(did_you_mean(name, known));
        Err(Wrong { help, ..self.key(name.to_string()).wrong(format!("is not {what}")) })
    }
}

/// As people write it: 9e9 and not 9000000000.
fn number(value: f64) -> String {
    match value != 0.0 && value.is_finite() && !(1e-3..1e6).contains(&value.abs()) {
        true => format!("{value:e}"),
        false => value.to_string(),
    }
}

/// Checks all numbers of a machine.
pub(super) fn check(machine: &Machine) -> Checked {
    let root = CheckedTable::default();
    if machine.version != VERSION {
        let message = format!("is {}; this is Meshwright's version {VERSION}", machine.version);
        return Err(root.key("version").wrong(message));
    }
    device(&machine.device, &root.key("device"))?;
    let mut below = 1;
    for (i, t) in machine.tier.iter().enumerate() {
        let table = root.key("tier").item(i, &t.name);
        if machine.tier[..i].iter().any(|other| other.name == t.name) {
            return Err(table.wrong("two levels have this name"));
        }
        let expected = format!("more than the level below, {below},");
        table.expect("size", t.size as f64, t.size > below, &expected)?;
        below = t.size;
        tier(t, &table, machine.device.units)?;
    }
    if let Some(f) = &machine.failures {
        let table = root.key("failures");
        table.positive("hours", f.hours)?;
        table.not_negative("restart", f.restart)?;
        table.not_negative("checkpoint", f.checkpoint)?;
    }
    if let Some(c) = &machine.calibration {
        let table = root.key("calibration");
        if let Some(engine) = c.engine.as_deref().filter(|e| !ENGINES.contains(e)) {
            let known = ENGINES.join(", ");
            return Err(table.key("engine").wrong(format!("is `{engine}`; one of {known} is expected")));
        }
        table.at_least("plans", c.plans as usize, 1)?;
        table.not_negative("mean_error", c.mean_error)?;
        let expected = format!("at least the mean, {},", number(c.mean_error));
        table.expect("max_error", c.max_error, c.max_error >= c.mean_error, &expected)?;
    }
    errors(machine, &root.key("errors"))
}

fn errors(machine: &Machine, table: &CheckedTable) -> Checked {
    for (family, error) in &machine.errors {
        let table = table.key(family.clone());
        if !(0.0..=1.0).contains(error) {
            return Err(table.wrong(format!("is {}; a share from 0 to 1 is expected", number(*error))));
        }
        if machine.calibration.is_none() && *error < UNCALIBRATED {
            return Err(table.wrong(format!(
                "is {error}; below {UNCALIBRATED}, a `[calibration]` has to say where it was measured"
            )));
        }
    }
    Ok(())
}

fn device(d: &Device, table: &CheckedTable) -> Checked {
    table.positive("memory", d.memory)?;
    table.not_negative("reserve", d.reserve)?;
    let expected = format!("less than the memory, {},", number(d.memory));
    table.expect("reserve", d.reserve, d.reserve < d.memory, &expected)?;
    table.at_least("units", d.units as usize, 1)?;
    table.not_negative("kernel", d.kernel)?;
    table.part("sustained", d.sustained)?;
    table.part("attention_sustained", d.attention_sustained)?;
    table.share("threads", d.threads)?;
    table.share("straggle", d.straggle)?;
    let matrix = table.key("matrix");
    if d.matrix.is_empty() {
        return Err(matrix.wrong("has no dtype"));
    }
    for (dtype, m) in &d.matrix {
        matrix.one_of(dtype, &DTYPES, "a dtype of matrix products")?;
        let table = matrix.key(dtype.clone());
        table.positive("peak", m.peak)?;
        table.positive("best", m.best)?;
        table.expect("best", m.best, m.best <= m.peak, &format!("at most the peak, {},", number(m.peak)))?;
    }
    product(d, &table.key("product"))?;
    let stream = table.key("stream");
    if d.stream.rates.is_empty() {
        return Err(stream.key("rates").wrong("has no entry"));
    }
    for (bytes, rate) in &d.stream.rates {
        stream.positive("rates", *bytes)?;
        stream.positive("rates", *rate)?;
    }
    if !d.stream.rates.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(stream.key("rates").wrong("bytes are not ascending"));
    }
    d.stream.total.map_or(Ok(()), |total| stream.positive("total", total))?;
    rates_by_name(d, table)
}

fn product(d: &Device, table: &CheckedTable) -> Checked {
    table.part("issue", d.product.issue)?;
    table.not_negative("fill", d.product.fill)?;
    table.part("split", d.product.split)?;
    let tiles = table.key("tiles");
    if d.product.tiles.is_empty() {
        return Err(tiles.wrong("has no tile"));
    }
    for (i, (rows, columns, rate)) in d.product.tiles.iter().enumerate() {
        let tile = tiles.item(i, &i.to_string());
        if *rows == 0 || *columns == 0 {
            return Err(tile.wrong("a tile has no elements"));
        }
        if !(*rate > 0.0 && *rate <= 1.0) {
            return Err(tile.wrong(format!("the rate is {rate}; a share above 0 and up to 1 is expected")));
        }
    }
    Ok(())
}

/// Scalar functions, families of kernels, attention.
fn rates_by_name(d: &Device, table: &CheckedTable) -> Checked {
    let scalar = table.key("scalar");
    for (family, seconds) in &d.scalar {
        scalar.one_of(family, &SCALAR_FAMILIES, "a family of functions")?;
        if !(seconds.is_finite() && *seconds > 0.0) {
            let message = format!("is {seconds}; a positive number is expected");
            return Err(scalar.key(family.clone()).wrong(message));
        }
    }
    let missing = SCALAR_FAMILIES.iter().find(|f| !d.scalar.contains_key(**f));
    if let (DeviceKind::Cpu, Some(missing)) = (d.kind, missing) {
        return Err(scalar.wrong(format!("a CPU's file has seconds of `{missing}`")));
    }
    for (family, rate) in &d.families {
        if !(rate.is_finite() && *rate > 0.0) {
            let message = format!("is {rate}; a positive number is expected");
            return Err(table.key("families").key(family.clone()).wrong(message));
        }
    }
    for (name, a) in &d.attention {
        let table = table.key("attention").key(name.clone());
        for (key, (top, half)) in [("forward", a.forward), ("backward", a.backward)] {
            table.positive(key, top)?;
            table.not_negative(key, half)?;
        }
        a.widths.iter().try_for_each(|(_, rate)| table.part("widths", *rate))?;
        if !a.widths.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(table.key("widths").wrong("elements are not ascending"));
        }
        table.expect("dropout", a.dropout, a.dropout >= 1.0, "a factor of at least 1")?;
    }
    Ok(())
}

fn tier(t: &Tier, table: &CheckedTable, units: u32) -> Checked {
    table.not_negative("hop", t.hop)?;
    t.cap.map_or(Ok(()), |cap| table.positive("cap", cap))?;
    t.p2p.map_or(Ok(()), |rate| table.positive("p2p", rate))?;
    table.not_negative("p2p_latency", t.p2p_latency)?;
    table.not_negative("units", t.units)?;
    let expected = format!("at most the units of the device, {units},");
    table.expect("units", t.units, t.units <= f64::from(units), &expected)?;
    for (i, l) in t.line.iter().enumerate() {
        line(l, &table.key("line").item(i, &l.name))?;
    }
    for op in CollectiveKind::ALL.into_iter().filter(has_lines) {
        // Lines may be for some numbers of members; together they are for all. A gap can only begin where one ends.
        let ends = t.line.iter().map(|l| l.members.1.saturating_add(1));
        let mut begins: Vec<usize> = ends.chain([2]).filter(|n| (2..=t.size).contains(n)).collect();
        begins.sort_unstable();
        if let Some(n) = begins.iter().find(|n| !t.line.iter().any(|l| l.is_for(op.name(), f64::MAX, **n))) {
            return Err(table.wrong(format!("no line is for `{op}` of {n} members")));
        }
    }
    t.reduce.as_ref().map_or(Ok(()), |r| reduce(r, &table.key("reduce")))
}

fn line(l: &NetworkLine, table: &CheckedTable) -> Checked {
    let known = CollectiveKind::ALL.map(CollectiveKind::name);
    for op in &l.ops {
        if !known.contains(&&**op) {
            let help = Some(did_you_mean(op, &known));
            return Err(Wrong { help, ..table.key("ops").wrong(format!("`{op}` is no collective")) });
        }
    }
    let members = table.key("members");
    match l.members {
        (least, _) if least < 2 => return Err(members.wrong("a collective has at least 2 members")),
        (least, most) if most < least => return Err(members.wrong(format!("from {least} to {most}"))),
        _ => {}
    }
    l.up_to.map_or(Ok(()), |bytes| table.positive("up_to", bytes))?;
    l.cap.map_or(Ok(()), |cap| table.positive("cap", cap))?;
    table.not_negative("latency", l.latency)?;
    table.not_negative("per_member", l.per_member)?;
    table.positive("rate", l.rate)
}

fn reduce(r: &InNetwork, table: &CheckedTable) -> Checked {
    table.at_least("levels", r.levels as usize, 1)?;
    table.positive("rate", r.rate)?;
    table.not_negative("link", r.link)?;
    table.positive("frame", r.frame)?;
    table.not_negative("smallest", r.smallest)?;
    match (r.mode, r.buffer) {
        (_, Some(buffer)) => table.positive("buffer", buffer),
        (ReduceMode::StoreAndForward, None) => Err(table.key("buffer").wrong("store-and-forward needs one")),
        (ReduceMode::CutThrough, None) => Ok(()),
    }
}
