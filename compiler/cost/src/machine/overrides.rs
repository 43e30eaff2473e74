//! Other machines: one value of a machine is changed, `tier.rail.rate=25e9`.

use super::check::check;
use super::error::{did_you_mean, unknown};
use super::{Machine, MachineError};
use toml::{Table, Value};

/// Where the lines of a level are.
const LINES: &str = "line";

impl Machine {
    /// This machine with another value: `tier.rail.rate=25e9`. A path leads through tables by key and through arrays of tables by
    /// the name of an entry, and means all entries of the name. A key that a level lacks but its lines have is that of all its
    /// lines. The change is in the name of the result.
    pub fn with(&self, change: &str) -> Result<Machine, MachineError> {
        let (path, value) = change.split_once('=').ok_or_else(|| {
            MachineError::new(format!("`{change}` has no `=`")).help(Some("write `tier.rail.rate=25e9`"))
        })?;
        let (path, value) = (path.trim(), value.trim());
        let parsed: Table = toml::from_str(&format!("value = {value}"))
            .map_err(|_| MachineError::new(format!("`{value}` is no number, text or list")).key(path))?;
        let value = &parsed["value"];
        let mut changed = match self.set(path, value, false)? {
            Ok(changed) => changed,
            Err(first) => match (unknown(first.message()), self.set(path, value, true)?) {
                (Some(_), Ok(changed)) => changed,
                (Some((key, known)), Err(second)) => {
                    // Without lines both attempts know the same.
                    let mut more = unknown(second.message()).map_or(Vec::new(), |u| u.1);
                    more.retain(|name| !known.contains(name));
                    let known: Vec<&str> = known.into_iter().chain(more).collect();
                    let message = format!("unknown key `{key}`");
                    return Err(MachineError::new(message).key(path).help(Some(did_you_mean(key, &known))));
                }
                (None, _) => return Err(MachineError::new(first.message()).key(path)),
            },
        };
        check(&changed).map_err(|wrong| MachineError::from(&wrong))?;
        changed.name = format!("{}, {path}={value}", self.name);
        Ok(changed)
    }

    /// The machine after a value is set in the tables of that path, or in their lines: an error if they have no such key.
    fn set(
        &self,
        path: &str,
        value: &Value,
        in_lines: bool,
    ) -> Result<Result<Machine, toml::de::Error>, MachineError> {
        let mut all = Value::try_from(self).map_err(|e| MachineError::new(e.to_string()))?;
        let (tables, key) = path.rsplit_once('.').unwrap_or(("", path));
        for table in find(&mut all, tables, path)? {
            match table.get_mut(LINES).filter(|_| in_lines) {
                Some(Value::Array(lines)) => {
                    let lines = lines.iter_mut().filter_map(Value::as_table_mut);
                    lines.for_each(|l| drop(l.insert(key.into(), value.clone())));
                }
                _ => drop(table.insert(key.into(), value.clone())),
            }
        }
        Ok(all.try_into())
    }
}

/// The tables that a path leads to.
fn find<'a>(all: &'a mut Value, tables: &str, path: &str) -> Result<Vec<&'a mut Table>, MachineError> {
    let mut found = vec![all];
    for key in tables.split('.').filter(|k| !k.is_empty()) {
        let mut known: Vec<String> = Vec::new();
        let mut next = Vec::new();
        for value in found {
            match value {
                Value::Table(t) => {
                    known.extend(t.keys().cloned());
                    next.extend(t.get_mut(key));
                }
                Value::Array(entries) => {
                    let names = entries.iter().filter_map(name).map(String::from).collect::<Vec<_>>();
                    known.extend(names);
                    next.extend(entries.iter_mut().filter(|e| name(e) == Some(key)));
                }
                _ => {}
            }
        }
        if next.is_empty() {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let error = MachineError::new(format!("there is no `{key}`")).key(path);
            return Err(error.help(Some(did_you_mean(key, &known))));
        }
        found = next;
    }
    let tables: Vec<&mut Table> = found.into_iter().filter_map(Value::as_table_mut).collect();
    match tables.is_empty() {
        true => Err(MachineError::new("is no value of a table").key(path)),
        false => Ok(tables),
    }
}

fn name(entry: &Value) -> Option<&str> {
    entry.get("name")?.as_str()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::read::tests::SMALL;
    use super::*;

    #[test]
    fn a_value_is_changed_by_its_path() {
        let old = Machine::read(SMALL).unwrap();
        let rates = |m: &Machine, tier: usize| m.tier[tier].line.iter().map(|l| l.rate).collect::<Vec<_>>();
        let new = old.with("tier.rail.rate=25e9").unwrap();
        assert_eq!((rates(&new, 0), rates(&new, 1)), (rates(&old, 0), vec![25e9, 25e9]));
        assert_eq!(new.name, "Small, tier.rail.rate=25000000000.0");
        assert_eq!(
            Machine { name: old.name.clone(), ..old.with("tier.rail.rate=10e9").unwrap() }.tier[0],
            old.tier[0]
        );
        let new = old.with("tier.rail.line.tree.rate = 9e9").unwrap();
        assert_eq!(rates(&new, 1), [10e9, 9e9]);
        assert_eq!(old.with("device.matrix.f32.best=9e12").unwrap().device.matrix["f32"].best, 9e12);
        assert_eq!(old.with("device.units=20").unwrap().device.units, 20);
        assert_eq!(old.with("tier.link.cap=5").unwrap().tier[0].cap, Some(5.0));
        assert_eq!(old.with("device.stream.rates=[[1, 2]]").unwrap().device.stream.rates, [(1.0, 2.0)]);
        assert_eq!(old.with("errors.launch=0.3").unwrap().error("launch"), 0.3);
        assert_eq!(old.with("name=\"Other\"").unwrap().name, "Small, name=\"Other\"");
    }

    #[test]
    fn what_cannot_be_changed_is_told_with_the_nearest() {
        let old = Machine::read(SMALL).unwrap();
        for (change, expected) in [
            ("tier.rail.rte=1", "`tier.rail.rte`: unknown key `rte`; did you mean `rate`?"),
            ("tier.rial.rate=1", "`tier.rial.rate`: there is no `rial`; did you mean `rail`?"),
            ("tier.rail.line.rnig.rate=1", "there is no `rnig`; did you mean `ring`?"),
            ("device.sustaned=1", "unknown key `sustaned`; did you mean `sustained`?"),
            ("device.matrix.bf16.best=1", "there is no `bf16`; known here: f32"),
            ("device.units.x=1", "`device.units.x`: is no value of a table"),
            ("device.sustained=2", "`device.sustained`: is 2; a share from 1e-6 to 1 is expected"),
            ("device.kernel=1e308", "`device.kernel`: is 1e308; a number from 0 to 1e6 is expected"),
            ("device.units=many", "`device.units`: `many` is no number, text or list"),
            ("device.units=1.5", "`device.units`: invalid type: floating point `1.5`, expected u32"),
            ("device.units", "`device.units` has no `=`; write `tier.rail.rate=25e9`"),
        ] {
            let text = old.with(change).unwrap_err().to_string();
            assert!(text.contains(expected), "{change}: {text}");
        }
        let known =
            "unknown key `nope`; known here: version, name, device, tier, failures, errors, calibration";
        let text = old.with("nope=1").unwrap_err().to_string();
        assert!(text.ends_with(known), "each once: {text}");
    }
}
