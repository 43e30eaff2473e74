//! The log of a run, event by event, with all that each says.

use crate::run_dir::each_log_line;
use meshwright_files::Checked;
use serde_json::{Map, Value};
use std::path::Path;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogEvent {
    /// Its kind: `step`, `evaluation`, `epoch`, `done`.
    pub event: String,
    /// The split of an evaluation.
    pub set: Option<String>,
    /// The rest by name.
    pub fields: Map<String, Value>,
}

impl LogEvent {
    /// Hands out the events of the log of the run in a folder, one after the other: a log may be larger than memory. Lines that
    /// are damaged are left out; so is a last one that is being written.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read, and what `take` fails with.
    pub fn each(run: &Path, mut take: impl FnMut(LogEvent) -> Checked<()>) -> Checked<()> {
        let mut taken = Ok(());
        each_log_line(run, |line| {
            if let (Ok(()), Some(event)) = (&taken, LogEvent::parse(line)) {
                taken = take(event);
            }
        })?;
        taken
    }

    fn parse(line: &[u8]) -> Option<LogEvent> {
        let mut fields: Map<String, Value> = serde_json::from_slice(line).ok()?;
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let (event, set) = (text("event")?, text("set"));
        Some(LogEvent { event, set, fields })
    }

    /// A number by its name; one that JSON lacks is NaN.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.fields.get(name)? {
            Value::Null => Some(f64::NAN),
            value => value.as_f64(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_line_by_line() {
        let run = tempfile::tempdir().unwrap();
        let steps = || {
            let mut all = Vec::new();
            LogEvent::each(run.path(), |e| {
                all.push(e.number("step").unwrap());
                Ok(())
            })
            .map(|()| all)
        };
        assert!(steps().unwrap().is_empty(), "there is no log yet");
        let step = |n: usize| format!("{{\"event\":\"step\",\"step\":{n}}}\n");
        let long = format!("{{\"event\":\"step\",\"step\":2,\"x\":\"{}\"}}\n", "x".repeat(1 << 24));
        let text = step(1) + &long + "noise\n" + &step(3) + "{\"event\":\"st";
        std::fs::write(run.path().join("metrics.jsonl"), text).unwrap();
        assert_eq!(steps().unwrap(), [1.0, 3.0]);
    }

    #[test]
    fn events_have_all_their_fields() {
        let e = LogEvent::parse(br#"{"event":"step","step":1,"loss":null,"time":"t"}"#).unwrap();
        assert!(e.event == "step" && e.set.is_none() && e.number("loss").unwrap().is_nan());
        assert_eq!((e.number("step"), e.number("time"), e.number("none")), (Some(1.0), None, None));
        assert!(LogEvent::parse(b"{\"event\":\"st").is_none() && LogEvent::parse(b"{\"step\":1}").is_none());
    }
}
