//! The curves of a run: its `metrics.jsonl` as numbers.

use super::line::{LineKind, LogLine};
use crate::metrics::Evaluation;
use crate::run_dir::each_log_line;
use meshwright_files::Checked;
use std::path::Path;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPoint {
    /// Its number, from 1.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// Wall time.
    pub seconds: f64,
}

/// An epoch, or what of one is done where a run has ended within it.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochPoint {
    /// Its number, from 1.
    pub epoch: u32,
    /// Steps done at its end.
    pub step: u64,
    /// Mean loss of its steps.
    pub train_loss: f64,
    /// Means of what its steps tell of their batches, by name: other losses, and the metrics that were asked for.
    pub train: Vec<(String, f64)>,
    /// What was measured at its end.
    pub evaluation: Option<Evaluation>,
    /// Wall time, with the evaluation.
    pub seconds: f64,
}

/// An evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluationPoint {
    /// Steps done.
    pub step: u64,
    /// The split.
    pub set: String,
    /// What was measured.
    pub evaluation: Evaluation,
    /// Wall time.
    pub seconds: f64,
}

/// All that the log of a run tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunCurves {
    /// The steps, in order.
    pub steps: Vec<StepPoint>,
    /// The epochs of which the end is reached.
    pub epochs: Vec<EpochPoint>,
    /// The steps after the last of these, as if they were an epoch.
    pub rest: Option<EpochPoint>,
    /// The evaluations, in order.
    pub evaluations: Vec<EvaluationPoint>,
    /// Wall time of the process that ended the run; none where it has not ended.
    pub done: Option<f64>,
    /// The most memory that the first process had at the end of a step, or in all where the run has ended.
    pub memory_bytes: u64,
    /// What a device gives to collectives in a step.
    pub bytes_communicated: Option<u64>,
}

impl RunCurves {
    /// Reads the log of the run in a folder. Lines that are damaged are left out; so is a last one that is being written.
    ///
    /// # Errors
    ///
    /// E0511 where it cannot be read.
    pub fn read(run: &Path) -> Checked<RunCurves> {
        let mut curves = RunCurves::default();
        let mut open = Sums::default();
        // A log is larger than what is kept of it.
        each_log_line(run, |line| curves.add(line, &mut open))?;
        let next = curves.epochs.last().map_or(0, |e| e.epoch) + 1;
        curves.rest = (open.steps > 0).then(|| open.point(next));
        Ok(curves)
    }

    fn add(&mut self, line: &[u8], open: &mut Sums) {
        let Some(line) = LogLine::parse(line) else { return };
        self.memory_bytes = self.memory_bytes.max(line.memory);
        match line.kind {
            LineKind::Step => {
                let LogLine { step, loss, seconds, .. } = line;
                self.steps.push(StepPoint { step, loss, seconds });
                self.bytes_communicated = Some(line.communicated);
                open.add(&line);
            }
            LineKind::Evaluation => self.evaluations.push(EvaluationPoint {
                step: line.step,
                set: line.set.as_deref().unwrap_or_default().into(),
                evaluation: evaluation(&line)
                    .unwrap_or_else(|| Evaluation { loss: f64::NAN, metrics: vec![] }),
                seconds: line.seconds,
            }),
            LineKind::Epoch => {
                let point = std::mem::take(open).point(line.epoch);
                let (step, train_loss, seconds) = (line.step, line.train_loss, line.seconds);
                let evaluation = evaluation(&line);
                self.epochs.push(EpochPoint { step, train_loss, seconds, evaluation, ..point });
            }
            LineKind::Done => self.done = Some(line.seconds),
            LineKind::Other => {}
        }
    }
}

fn evaluation(line: &LogLine<'_>) -> Option<Evaluation> {
    let (mut loss, mut metrics) = (None, Vec::new());
    for (name, value) in &line.eval {
        match &**name {
            "loss" => loss = Some(*value),
            name => metrics.push((name.to_string(), *value)),
        }
    }
    Some(Evaluation { loss: loss?, metrics })
}

/// Of the steps of an epoch.
#[derive(Default)]
struct Sums {
    steps: u64,
    last: u64,
    loss: f64,
    seconds: f64,
    train: Vec<(String, f64)>,
}

impl Sums {
    fn add(&mut self, line: &LogLine<'_>) {
        (self.steps, self.last) = (self.steps + 1, line.step);
        self.loss += line.loss;
        self.seconds += line.seconds;
        for (i, (name, value)) in line.train.iter().enumerate() {
            match self.train.get_mut(i).filter(|t| t.0 == **name) {
                Some(t) => t.1 += value,
                None => self.train.insert(i, (name.to_string(), *value)),
            }
        }
    }

    fn point(self, epoch: u32) -> EpochPoint {
        let n = self.steps.max(1) as f64;
        let train = self.train.into_iter().map(|(name, sum)| (name, sum / n)).collect();
        let (step, train_loss) = (self.last, self.loss / n);
        EpochPoint { epoch, step, train_loss, train, evaluation: None, seconds: self.seconds }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LOG: &str = r#"{"event":"step","step":1,"loss":4.0,"train_accuracy":0.25,"learning_rate":0.1,"seconds":0.5,"bytes_communicated":64,"memory_bytes":4096,"time":"t"}
{"event":"step","step":2,"loss":2.0,"train_accuracy":0.75,"seconds":0.25,"bytes_communicated":64,"memory_bytes":8192}
{"event":"evaluation","step":2,"set":"te\"st","eval_loss":1.5,"eval_accuracy":0.5,"seconds":0.125}
{"event":"epoch","epoch":1,"step":2,"train_loss":3.0,"eval_loss":1.5,"eval_accuracy":0.5,"seconds":1.0}
noise
{"event":"later","step":"text"}
{"event":"step","step":3,"loss":null,"train_accuracy":1.0,"seconds":0.25,"bytes_communicated":64,"memory_bytes":1}
{"event":"done","steps":3,"epochs":1,"seconds":2.0,"peak_memory_bytes":16384}
{"event":"step","step":4"#;

    /// Of a log of that text.
    fn curves(text: &str) -> RunCurves {
        let run = tempfile::tempdir().unwrap();
        std::fs::write(run.path().join("metrics.jsonl"), text).unwrap();
        RunCurves::read(run.path()).unwrap()
    }

    #[test]
    fn a_log_becomes_curves() {
        let c = curves(LOG);
        assert_eq!(c.steps.len(), 3);
        assert_eq!(c.steps[1], StepPoint { step: 2, loss: 2.0, seconds: 0.25 });
        assert!(c.steps[2].loss.is_nan());
        let evaluation = Evaluation { loss: 1.5, metrics: vec![("accuracy".into(), 0.5)] };
        let epoch = EpochPoint {
            epoch: 1,
            step: 2,
            train_loss: 3.0,
            train: vec![("accuracy".into(), 0.5)],
            evaluation: Some(evaluation.clone()),
            seconds: 1.0,
        };
        assert_eq!(c.epochs, [epoch]);
        assert_eq!(
            c.evaluations,
            [EvaluationPoint { step: 2, set: "te\"st".into(), evaluation, seconds: 0.125 }]
        );
        // What of the next epoch is done.
        let rest = c.rest.as_ref().map(|r| (r.epoch, r.step, r.train.clone(), r.seconds));
        assert_eq!(rest, Some((2, 3, vec![("accuracy".to_string(), 1.0)], 0.25)));
        assert_eq!((c.done, c.memory_bytes, c.bytes_communicated), (Some(2.0), 16384, Some(64)));
        assert_eq!(curves(""), RunCurves::default());
        assert_eq!(RunCurves::read(tempfile::tempdir().unwrap().path()).unwrap(), RunCurves::default());
    }
}
