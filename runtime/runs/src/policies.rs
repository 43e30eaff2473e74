//! Policies of a run: when it saves and evaluates, which checkpoints it keeps, and when it ends early.

use crate::metrics::Evaluation;
use meshwright_syntax::ast::Better;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// When checkpoints are written between evaluations and the ends of epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveEvery {
    /// Every this number of steps.
    Steps(u64),
    /// When this time has passed since the last one.
    Time(Duration),
}

/// Policy of saving: which checkpoints are written, and which are kept.
#[derive(Clone, Debug)]
pub struct SavePolicy {
    /// More often than at the ends of epochs and before evaluations.
    pub every: Option<SaveEvery>,
    /// Number of the newest that are kept.
    pub keep: usize,
    /// The best by a metric is kept too.
    pub best: Option<Monitor>,
}

impl Default for SavePolicy {
    fn default() -> Self {
        SavePolicy { every: None, keep: 2, best: None }
    }
}

/// When a run is evaluated, and when it ends early.
#[derive(Clone, Debug, Default)]
pub struct EvaluationPolicy {
    /// Every this number of steps, instead of at the end of each epoch.
    pub every: Option<u64>,
    /// End after this number of evaluations that are no better than the best.
    pub patience: Option<u32>,
    /// Criterion of the best.
    pub monitor: Monitor,
    /// The share of the training set that is held out to validate on.
    pub validation: Option<f64>,
}

/// Both policies in the words of the command line, as `run.toml` keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySettings {
    /// `--checkpoint-every`.
    pub checkpoint_every: Option<String>,
    /// `--keep`.
    pub keep: Option<u16>,
    /// `--keep-best`.
    pub keep_best: Option<String>,
    /// `--metrics`.
    pub metrics: Vec<String>,
    /// `--log`.
    pub log: Vec<String>,
    /// `--validation`.
    pub validation: Option<f64>,
    /// `--eval-every`.
    pub eval_every: Option<u64>,
    /// `--patience`.
    pub patience: Option<u32>,
    /// `--monitor`.
    pub monitor: Option<String>,
    /// `--peak-flops`.
    pub peak_flops: Option<f64>,
}

impl PolicySettings {
    /// Each option that differs in `now`, with its value here and there.
    pub(crate) fn changed_to(&self, now: &PolicySettings) -> Vec<(String, String, String)> {
        let table = |of: &PolicySettings| toml::Table::try_from(of).unwrap_or_default();
        let (was, is) = (table(self), table(now));
        let mut names: Vec<&String> = was.keys().chain(is.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let shown = |of: &toml::Table, name: &str| match of.get(name) {
            None => "the default".to_string(),
            Some(toml::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let changed = names.into_iter().filter(|name| was.get(*name) != is.get(*name));
        changed.map(|name| (name.replace('_', "-"), shown(&was, name), shown(&is, name))).collect()
    }

    /// These, and what they leave open as `other` has it.
    pub fn or(self, other: &PolicySettings) -> PolicySettings {
        let list =
            |mine: Vec<String>, other: &Vec<String>| if mine.is_empty() { other.clone() } else { mine };
        PolicySettings {
            checkpoint_every: self.checkpoint_every.or_else(|| other.checkpoint_every.clone()),
            keep: self.keep.or(other.keep),
            keep_best: self.keep_best.or_else(|| other.keep_best.clone()),
            metrics: list(self.metrics, &other.metrics),
            log: list(self.log, &other.log),
            validation: self.validation.or(other.validation),
            eval_every: self.eval_every.or(other.eval_every),
            patience: self.patience.or(other.patience),
            monitor: self.monitor.or_else(|| other.monitor.clone()),
            peak_flops: self.peak_flops.or(other.peak_flops),
        }
    }

    /// The same, with what it names and which way is better as these policies have it.
    pub fn resolved(mut self, saves: &SavePolicy, evaluation: &EvaluationPolicy) -> PolicySettings {
        self.keep_best = saves.best.as_ref().map(Monitor::to_string);
        self.monitor = self.patience.map(|_| evaluation.monitor.to_string());
        self
    }
}

/// As the command line has it.
impl Display for SaveEvery {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            SaveEvery::Steps(n) => write!(f, "{n}"),
            SaveEvery::Time(time) => write!(f, "{}s", time.as_secs()),
        }
    }
}

impl FromStr for SaveEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 5] = [("min", 60), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)];
        let wrong = || {
            format!("`{text}` is neither a number of steps nor a time: write `500`, `90s`, `10min` or `2h`")
        };
        let number = |t: &str| t.trim().replace('_', "").parse::<u64>().ok().filter(|n| *n > 0);
        if let Some(steps) = number(text) {
            return Ok(SaveEvery::Steps(steps));
        }
        let unit = UNITS.iter().find_map(|(unit, n)| Some((text.strip_suffix(unit)?, *n)));
        let (count, seconds) = unit.ok_or_else(wrong)?;
        let all = number(count).and_then(|n| n.checked_mul(seconds)).ok_or_else(wrong)?;
        Ok(SaveEvery::Time(Duration::from_secs(all)))
    }
}

/// The criterion by which evaluations are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// `loss`, or the name of another loss or of a metric.
    pub metric: String,
    /// The better values: more or less.
    pub better: Better,
}

impl Default for Monitor {
    fn default() -> Self {
        Monitor { metric: "loss".into(), better: Better::Less }
    }
}

/// As the command line has it, with the word before the name.
impl Display for Monitor {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.better.word(), self.metric)
    }
}

/// An evaluation of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Steps done.
    pub step: u64,
    /// The evaluation.
    pub eval: Evaluation,
}

impl Monitor {
    /// The better values, in words.
    pub fn in_words(&self) -> String {
        let way = match self.better {
            Better::Less => "less",
            Better::More => "more",
        };
        format!("{way} `{}` is better", self.metric)
    }

    /// The place of the best evaluation, the first of equal ones, and its value. Values that are not numbers are never best.
    pub fn best(&self, seen: &[Seen]) -> Option<(usize, f64)> {
        let mut best: Option<(usize, f64)> = None;
        for (at, s) in seen.iter().enumerate() {
            let Some(v) = s.eval.value(&self.metric).filter(|v| !v.is_nan()) else { continue };
            if best.is_none_or(|(_, b)| match self.better {
                Better::More => v > b,
                Better::Less => v < b,
            }) {
                best = Some((at, v));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_written_by_steps_or_by_time() {
        let every = |t: &str| t.parse::<SaveEvery>();
        let seconds = |n| Ok(SaveEvery::Time(Duration::from_secs(n)));
        assert_eq!(every("1_000"), Ok(SaveEvery::Steps(1000)));
        assert_eq!((every("90s"), every("10min"), every("2h")), (seconds(90), seconds(600), seconds(7200)));
        let again = |t: &str| every(t).map(|e| e.to_string());
        assert_eq!((again("1_000"), again("2h")), (Ok("1000".into()), Ok("7200s".into())));
        assert!(["", "0", "0s", "-1", "1.5h", "10 fortnights"].iter().all(|t| every(t).is_err()));
    }

    #[test]
    fn the_best_evaluation_is_the_first_of_the_best() {
        let seen = |values: &[f64]| -> Vec<Seen> {
            let eval = |v: &f64| Evaluation { loss: *v, metrics: vec![("accuracy".into(), *v)] };
            values.iter().enumerate().map(|(i, v)| Seen { step: i as u64, eval: eval(v) }).collect()
        };
        let values = [0.5, f64::NAN, 0.25, 0.75, 0.25, 0.75];
        let greater = Monitor { metric: "accuracy".into(), better: Better::More };
        assert_eq!(Monitor::default().best(&seen(&values)), Some((2, 0.25)));
        assert_eq!(greater.best(&seen(&values)), Some((3, 0.75)));
        assert_eq!(greater.best(&seen(&[f64::NAN])), None);
    }
}
