//! Ranges of the numbers of a machine.

use super::error::{MachineError, did_you_mean};
use super::{
    Device, DeviceKind, InNetwork, LEAST_ELEMENT_SECONDS, Machine, NetworkLine, ReduceMode, SCALAR_FAMILIES,
    Tier, UNCALIBRATED, VERSION,
};
use meshwright_plan::{CollectiveKind, Portion};
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// Dtypes of matrix products.
const DTYPES: [&str; 7] = ["f64", "f32", "tf32", "bf16", "f16", "fp8", "fp4"];

/// Engines that `calibrate` measures.
const ENGINES: [&str; 3] = ["threads", "mpi", "cuda"];

/// Families of work, of which a file has relative errors.
const FAMILIES: [&str; 6] = ["matmul", "attention", "memory_bound", "launch", "collective", "bubble"];

/// Collectives that every level has lines for: all members send and receive all, or a piece for each.
fn has_lines(kind: &CollectiveKind) -> bool {
    let traffic = kind.traffic();
    matches!(traffic.receive, Portion::Whole | Portion::Pieces) && !traffic.rooted
}

/// Seconds of a kernel, a latency or a restart: at most 11 days. Sums of them over a step stay finite.
const SECONDS: RangeInclusive<f64> = 0.0..=1e6;

/// Seconds of one element.
const ELEMENT_SECONDS: RangeInclusive<f64> = LEAST_ELEMENT_SECONDS..=1e6;

/// Bytes, and bytes or operations per second. Quotients of two stay finite, and so do times of a model's work.
const AMOUNT: RangeInclusive<f64> = 1.0..=1e30;

/// Elements or keys of one kernel.
const ELEMENTS: RangeInclusive<f64> = 0.0..=1e12;

/// Hours between failures.
const HOURS: RangeInclusive<f64> = 1e-6..=1e12;

/// Factors of a time, and relative errors.
const MOST_FACTOR: f64 = 1e6;

/// Shares that divide a time.
const PART: RangeInclusive<f64> = 1e-6..=1.0;

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

    fn within(&self, key: &'static str, value: f64, range: &RangeInclusive<f64>) -> Checked {
        self.expect(key, value, range.contains(&value), &spelled(range))
    }

    /// A number of seconds.
    fn seconds(&self, key: &'static str, value: f64) -> Checked {
        self.within(key, value, &SECONDS)
    }

    /// Bytes, or a rate.
    fn amount(&self, key: &'static str, value: f64) -> Checked {
        self.within(key, value, &AMOUNT)
    }

    fn share(&self, key: &'static str, value: f64) -> Checked {
        self.expect(key, value, (0.0..=1.0).contains(&value), "a share from 0 to 1")
    }

    /// A share that divides a time.
    fn part(&self, key: &'static str, value: f64) -> Checked {
        self.within(key, value, &PART)
    }

    /// The same for a value of a table with any keys.
    fn named(&self, name: &str, value: f64, range: &RangeInclusive<f64>) -> Checked {
        match range.contains(&value) {
            true => Ok(()),
            false => {
                let message = format!("is {}; {} is expected", number(value), spelled(range));
                Err(self.key(name.to_string()).wrong(message))
            }
        }
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

/// A range as a message names it.
fn spelled(range: &RangeInclusive<f64>) -> String {
    let what = if *range == PART { "share" } else { "number" };
    format!("a {what} from {} to {}", number(*range.start()), number(*range.end()))
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
        table.within("hours", f.hours, &HOURS)?;
        table.seconds("restart", f.restart)?;
        table.seconds("checkpoint", f.checkpoint)?;
    }
    if let Some(c) = &machine.calibration {
        let table = root.key("calibration");
        if let Some(engine) = c.engine.as_deref().filter(|e| !ENGINES.contains(e)) {
            let known = ENGINES.join(", ");
            return Err(table.key("engine").wrong(format!("is `{engine}`; one of {known} is expected")));
        }
        table.at_least("plans", c.plans as usize, 1)?;
        table.within("mean_error", c.mean_error, &(0.0..=MOST_FACTOR))?;
        table.within("max_error", c.max_error, &(c.mean_error..=MOST_FACTOR))?;
    }
    errors(machine, &root.key("errors"))
}

fn errors(machine: &Machine, table: &CheckedTable) -> Checked {
    for (family, error) in &machine.errors {
        table.one_of(family, &FAMILIES, "a family of work")?;
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
    table.amount("memory", d.memory)?;
    table.expect("reserve", d.reserve, d.reserve >= 0.0, "a number from 0 on")?;
    let expected = format!("less than the memory, {},", number(d.memory));
    table.expect("reserve", d.reserve, d.reserve < d.memory, &expected)?;
    table.at_least("units", d.units as usize, 1)?;
    table.seconds("kernel", d.kernel)?;
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
        table.amount("peak", m.peak)?;
        table.amount("best", m.best)?;
        table.expect("best", m.best, m.best <= m.peak, &format!("at most the peak, {},", number(m.peak)))?;
    }
    product(d, &table.key("product"))?;
    let stream = table.key("stream");
    if d.stream.rates.is_empty() {
        return Err(stream.key("rates").wrong("has no entry"));
    }
    for (bytes, rate) in &d.stream.rates {
        stream.amount("rates", *bytes)?;
        stream.amount("rates", *rate)?;
    }
    if !d.stream.rates.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(stream.key("rates").wrong("bytes are not ascending"));
    }
    d.stream.total.map_or(Ok(()), |total| stream.amount("total", total))?;
    rates_by_name(d, table)
}

fn product(d: &Device, table: &CheckedTable) -> Checked {
    table.part("issue", d.product.issue)?;
    table.within("fill", d.product.fill, &ELEMENTS)?;
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
        if !PART.contains(rate) {
            let message = format!("the rate is {}; {} is expected", number(*rate), spelled(&PART));
            return Err(tile.wrong(message));
        }
    }
    Ok(())
}

/// Scalar functions, families of kernels, attention.
fn rates_by_name(d: &Device, table: &CheckedTable) -> Checked {
    let scalar = table.key("scalar");
    for (family, seconds) in &d.scalar {
        scalar.one_of(family, &SCALAR_FAMILIES, "a family of functions")?;
        scalar.named(family, *seconds, &ELEMENT_SECONDS)?;
    }
    let missing = SCALAR_FAMILIES.iter().find(|f| !d.scalar.contains_key(**f));
    if let (DeviceKind::Cpu, Some(missing)) = (d.kind, missing) {
        return Err(scalar.wrong(format!("a CPU's file has seconds of `{missing}`")));
    }
    let families = table.key("families");
    d.families.iter().try_for_each(|(family, rate)| families.named(family, *rate, &AMOUNT))?;
    for (name, a) in &d.attention {
        let table = table.key("attention").key(name.clone());
        for (key, (top, half)) in [("forward", a.forward), ("backward", a.backward)] {
            table.amount(key, top)?;
            table.within(key, half, &ELEMENTS)?;
        }
        for (elements, rate) in &a.widths {
            table.within("widths", *elements, &ELEMENTS)?;
            table.part("widths", *rate)?;
        }
        if !a.widths.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(table.key("widths").wrong("elements are not ascending"));
        }
        table.within("dropout", a.dropout, &(1.0..=MOST_FACTOR))?;
    }
    Ok(())
}

fn tier(t: &Tier, table: &CheckedTable, units: u32) -> Checked {
    table.seconds("hop", t.hop)?;
    t.cap.map_or(Ok(()), |cap| table.amount("cap", cap))?;
    t.p2p.map_or(Ok(()), |rate| table.amount("p2p", rate))?;
    table.seconds("p2p_latency", t.p2p_latency)?;
    table.expect("units", t.units, t.units >= 0.0, "a number from 0 on")?;
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
    l.up_to.map_or(Ok(()), |bytes| table.amount("up_to", bytes))?;
    l.cap.map_or(Ok(()), |cap| table.amount("cap", cap))?;
    table.seconds("latency", l.latency)?;
    table.seconds("per_member", l.per_member)?;
    table.amount("rate", l.rate)
}

fn reduce(r: &InNetwork, table: &CheckedTable) -> Checked {
    table.at_least("levels", r.levels as usize, 1)?;
    table.amount("rate", r.rate)?;
    table.seconds("link", r.link)?;
    table.amount("frame", r.frame)?;
    table.within("smallest", r.smallest, &(0.0..=*AMOUNT.end()))?;
    match (r.mode, r.buffer) {
        (_, Some(buffer)) => table.amount("buffer", buffer),
        (ReduceMode::StoreAndForward, None) => Err(table.key("buffer").wrong("store-and-forward needs one")),
        (ReduceMode::CutThrough, None) => Ok(()),
    }
}
