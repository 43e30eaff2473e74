//! `metrics.jsonl`: appended to while a run goes on, and cut back to the checkpoint when it is resumed.

use crate::checkpoint::LogMark;
use crate::logs::EventSink;
use crate::metrics::{Evaluation, Event};
use crate::policies::Seen;
use crate::run_error::unusable;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use rustix::fs::OFlags;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// `metrics.jsonl`, open to append, with the other sinks of its events.
pub struct MetricsLog {
    file: File,
    path: PathBuf,
    /// Of all bytes so far.
    hash: Sha256,
    bytes: u64,
    sinks: Vec<Box<dyn EventSink>>,
}

impl MetricsLog {
    /// Opens the file of that name in a folder; `text` is its contents.
    pub fn open(
        run: &Folder,
        name: &str,
        text: &[u8],
        sinks: Vec<Box<dyn EventSink>>,
    ) -> Checked<MetricsLog> {
        let path = run.path().join(name);
        let file = run.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND);
        let file = file.map_err(|e| unusable(&path, &e))?;
        Ok(MetricsLog { file, path, hash: Sha256::new_with_prefix(text), bytes: text.len() as u64, sinks })
    }

    /// Appends an event, of which `line` is the line: in one write.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn append(&mut self, line: &str, event: &Event) -> Checked<()> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(|e| unusable(&self.path, &e))?;
        self.hash.update(line.as_bytes());
        self.bytes += line.len() as u64;
        self.sinks.iter_mut().try_for_each(|s| s.append(&line, event))
    }

    /// Makes all lines so far durable. To be called before a checkpoint is saved, so that none is lost that a resumed run
    /// will not write again.
    ///
    /// # Errors
    ///
    /// E0511.
    pub fn sync(&self) -> Checked<()> {
        self.file.sync_data().map_err(|e| unusable(&self.path, &e))
    }

    /// The file, to be made durable by another thread.
    pub fn to_sync(&self) -> Checked<File> {
        self.file.try_clone().map_err(|e| unusable(&self.path, &e))
    }

    /// Mark of the log so far: a checkpoint keeps it, so that a change shows.
    pub fn mark(&self) -> LogMark {
        LogMark { bytes: self.bytes, sha256: hex(self.hash.clone()) }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Position at which a run is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    /// Steps done.
    pub steps: u64,
    /// Epochs whose end is logged.
    pub epochs: u32,
    /// Whether the end of an epoch is reached and not logged: its evaluation is repeated.
    pub open: bool,
}

/// The part of a log up to a position, and its unreadable lines.
#[derive(Debug, Default, PartialEq)]
pub struct LogLines {
    /// Lines that a run had written that stands there.
    pub kept: Vec<u8>,
    /// Lines that are not events of a run, such as a damaged one. A torn last line is not among them.
    pub bad: Vec<u8>,
}

/// The lines of `text` that a run had written that stands there; what came later will come again.
pub fn cut_back(text: &[u8], stands: Stands) -> LogLines {
    let Stands { steps, epochs, open } = stands;
    let mut out = LogLines::default();
    for line in text.split_inclusive(|b| *b == b'\n').filter(|l| l.ends_with(b"\n")) {
        let Some((kind, event)) = event_of(line) else {
            out.bad.extend_from_slice(line);
            continue;
        };
        let number = |name: &str| event.get(name).and_then(Value::as_u64);
        let keep = match kind.as_str() {
            "step" => number("step").is_some_and(|s| s <= steps),
            "epoch" => number("epoch").is_some_and(|e| e <= u64::from(epochs)),
            "evaluation" => number("step").is_some_and(|s| s < steps || (s == steps && !open)),
            _ => false,
        };
        if keep {
            out.kept.extend_from_slice(line);
        }
    }
    out
}

fn event_of(line: &[u8]) -> Option<(String, Map<String, Value>)> {
    let event: Map<String, Value> = serde_json::from_slice(line).ok()?;
    Some((event.get("event")?.as_str()?.to_string(), event))
}

/// Facts from the log for a run that is resumed.
#[derive(Debug, Default)]
pub struct LogSummary {
    /// Evaluations up to a step, on the set on which a run is evaluated while it goes on.
    pub seen: Vec<Seen>,
    /// The last epoch whose end is logged.
    pub epochs: u32,
    /// Whether the log is unchanged since the checkpoint was made.
    pub unchanged: bool,
}

/// Reads the facts in `text` for a run that continues after `step`; `set` is its evaluation set.
pub fn summary(text: &[u8], step: u64, set: &str, mark: Option<&LogMark>) -> LogSummary {
    let unchanged = mark.is_none_or(|m| {
        let then = usize::try_from(m.bytes).ok().and_then(|n| text.get(..n));
        then.is_some_and(|t| hex(Sha256::new_with_prefix(t)) == m.sha256)
    });
    let mut out = LogSummary { unchanged, ..LogSummary::default() };
    for (kind, event) in text.split(|b| *b == b'\n').filter_map(event_of) {
        let number = |name: &str| event.get(name).and_then(Value::as_u64);
        match (kind.as_str(), number("step")) {
            ("epoch", Some(at)) if at <= step => {
                out.epochs = number("epoch").and_then(|e| u32::try_from(e).ok()).unwrap_or(out.epochs);
            }
            ("evaluation", Some(at)) if at <= step && event.get("set").is_some_and(|s| s == set) => {
                out.seen.push(Seen { step: at, eval: evaluation(&event) });
            }
            _ => {}
        }
    }
    out
}

fn evaluation(event: &Map<String, Value>) -> Evaluation {
    // A number that JSON lacks is null.
    let value = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    let values = event.iter().filter_map(|(k, v)| Some((k.strip_prefix("eval_")?, value(v))));
    let mut eval = Evaluation { loss: f64::NAN, metrics: vec![] };
    for (name, v) in values {
        if name == "loss" {
            eval.loss = v;
        } else {
            eval.metrics.push((name.into(), v));
        }
    }
    eval
}

/// Message for a log whose bytes differ from those that a checkpoint vouches for.
pub fn changed() -> String {
    "the lines of `metrics.jsonl` up to the checkpoint have changed since it was written: what they report may be wrong".into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TEXT: &str = "{\"event\":\"step\",\"step\":1,\"loss\":2.0}
{\"event\":\"step\",\"step\":2,\"loss\":1.0}
{\"event\":\"evaluation\",\"step\":2,\"set\":\"test\",\"eval_loss\":0.5,\"eval_accuracy\":null}
{\"event\":\"epoch\",\"epoch\":1,\"step\":2,\"train_loss\":1.5}
noise
{\"event\":\"step\",\"step\":3,\"loss\":1.0}
{\"event\":\"done\"}
{\"event\":\"st";

    fn lines(numbers: &[usize]) -> String {
        let all: Vec<&str> = TEXT.split_inclusive('\n').collect();
        numbers.iter().map(|n| all[*n]).collect()
    }

    #[test]
    fn a_log_is_cut_back_to_where_the_run_stands() {
        let kept = |steps, epochs, open| {
            let found = cut_back(TEXT.as_bytes(), Stands { steps, epochs, open });
            assert_eq!(found.bad, b"noise\n");
            String::from_utf8(found.kept).unwrap()
        };
        assert_eq!(kept(3, 1, false), lines(&[0, 1, 2, 3, 5]));
        assert_eq!(kept(2, 1, false), lines(&[0, 1, 2, 3]));
        // The evaluation of an epoch whose end is not logged is repeated.
        assert_eq!(kept(2, 0, true), lines(&[0, 1]));
        assert_eq!(kept(1, 0, false), lines(&[0]));
    }

    #[test]
    fn a_log_says_what_was_evaluated_and_whether_it_is_as_it_was() {
        let text = TEXT.as_bytes();
        let mark = LogMark { bytes: 60, sha256: hex(Sha256::new_with_prefix(&text[..60])) };
        let found = summary(text, 3, "test", Some(&mark));
        assert_eq!((found.epochs, found.seen.len(), found.unchanged), (1, 1, true));
        assert_eq!((found.seen[0].step, found.seen[0].eval.loss), (2, 0.5));
        assert!(found.seen[0].eval.value("accuracy").unwrap().is_nan());
        assert!(summary(text, 1, "test", None).seen.is_empty());
        assert!(summary(text, 3, "validation", None).seen.is_empty());
        let mut flipped = text.to_vec();
        flipped[30] ^= 1;
        assert!(!summary(&flipped, 3, "test", Some(&mark)).unchanged);
    }
}
