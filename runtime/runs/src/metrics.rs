//! Events of a run, one JSON object a line: in `metrics.jsonl`, and on standard output in JSON format.

use crate::clock::now;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// One line of `metrics.jsonl`. Every line has the time at its end, in RFC 3339.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A training step is done: `{"event":"step","step":1,"loss":2.3,"learning_rate":0.001,…}`.
    Step(StepMetrics),
    /// An evaluation is done: `{"event":"evaluation","step":600,"set":"test","eval_loss":0.1,"eval_accuracy":0.97,…}`.
    Evaluation {
        /// Steps done.
        step: u64,
        /// The split that was evaluated.
        set: String,
        /// The evaluation.
        eval: Evaluation,
        /// Wall time, in seconds.
        seconds: f64,
    },
    /// An epoch is done:
    /// `{"event":"epoch","epoch":1,"step":600,"train_loss":0.2,"eval_loss":0.1,"eval_accuracy":0.97,"seconds":3.1}`.
    Epoch {
        /// Its number, from 1.
        epoch: u32,
        /// Steps done.
        step: u64,
        /// Mean of its steps' losses, those before a resume included.
        train_loss: f64,
        /// The evaluation at its end, if there is a set for it.
        eval: Option<Evaluation>,
        /// Wall time of the epoch with its evaluation, in this process.
        seconds: f64,
    },
    /// The run is done: `{"event":"done","steps":600,"epochs":1,"seconds":3.2,"peak_memory_bytes":130000000,
    /// "peak_value_bytes":90000000}`.
    Done {
        /// Steps done, those before a resume included.
        steps: u64,
        /// Epochs done.
        epochs: u32,
        /// Wall time of this process's part of the run.
        seconds: f64,
        /// The most resident memory that this process ever had, in bytes; 0 where the system does not tell.
        peak_memory_bytes: u64,
        /// The most bytes that the values of this process's devices ever took at once, where these are threads: what the Plan
        /// counts.
        peak_value_bytes: u64,
    },
}

/// Measurements of every step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// Its number, from 1.
    pub step: u64,
    /// The loss that is minimized.
    pub loss: f64,
    /// The other losses and the metrics that were asked for, on the batch of the step: `train_NAME`.
    pub values: Vec<(String, f64)>,
    /// The learning rate that the step was made with.
    pub learning_rate: Option<f64>,
    /// The joint 2-norm of all gradients before clipping; where gradients are clipped, or it was asked for.
    pub gradient_norm: Option<f64>,
    /// In `f16`: the factor of the loss for its gradients.
    pub loss_scale: Option<f64>,
    /// In `f16`: whether nothing was updated, because a gradient was not finite.
    pub skipped: Option<bool>,
    /// Wall time of the step with the wait for its data, in this process.
    pub seconds: f64,
    /// Examples of a batch over these seconds.
    pub examples_per_second: f64,
    /// The same of tokens, where the inputs are sequences of integers.
    pub tokens_per_second: Option<f64>,
    /// Operations of the model in a step, forward and backward, on all devices together.
    pub model_flops: u64,
    /// Model FLOPs utilization: these operations over the step's time, as a share of the peak.
    pub mfu: Option<f64>,
    /// The peak: operations a second of all devices together, as it was given or measured before the first step.
    pub peak_flops: Option<f64>,
    /// Bytes that a device sends in collectives in a step, by the Plan.
    pub bytes_communicated: u64,
    /// The share of the step that the devices of this process wait in collectives for others, on average.
    pub waiting: f64,
    /// Resident memory of this process, in bytes.
    pub memory_bytes: u64,
}

/// Loss and metrics over a whole set of examples.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Evaluation {
    /// The loss.
    pub loss: f64,
    /// The metrics by name, in the order of the model.
    pub metrics: Vec<(String, f64)>,
}

/// A value of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A count.
    Count(u64),
    /// A number; JSON writes `null` for what it lacks, NaN and infinities.
    Number(f64),
    /// A text.
    Text(String),
}

impl Evaluation {
    /// The loss and the metrics as a line has them: `eval_NAME`.
    pub fn fields(&self) -> Vec<(String, Field)> {
        // A metric that is itself called `loss` would take the loss's key.
        let metrics = self.metrics.iter().filter(|m| m.0 != "loss");
        let all = std::iter::once(("loss", self.loss)).chain(metrics.map(|(n, v)| (n.as_str(), *v)));
        all.map(|(name, value)| (format!("eval_{name}"), Field::Number(value))).collect()
    }

    /// The loss, or a metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        let metric = self.metrics.iter().find(|m| m.0 == name).map(|m| m.1);
        metric.or((name == "loss").then_some(self.loss))
    }
}

impl StepMetrics {
    fn fields(&self) -> Vec<(String, Field)> {
        let number = |name: &str, v: f64| (name.to_string(), Field::Number(v));
        let mut out = vec![("step".to_string(), Field::Count(self.step)), number("loss", self.loss)];
        out.extend(self.values.iter().map(|(name, v)| number(&format!("train_{name}"), *v)));
        out.extend(self.learning_rate.map(|v| number("learning_rate", v)));
        out.extend(self.gradient_norm.map(|v| number("gradient_norm", v)));
        out.extend(self.loss_scale.map(|v| number("loss_scale", v)));
        out.extend(self.skipped.map(|s| ("skipped".to_string(), Field::Count(s.into()))));
        out.push(number("seconds", self.seconds));
        out.push(number("examples_per_second", self.examples_per_second));
        out.extend(self.tokens_per_second.map(|v| number("tokens_per_second", v)));
        out.push(("model_flops".into(), Field::Count(self.model_flops)));
        out.extend(self.mfu.map(|v| number("mfu", v)));
        out.extend(self.peak_flops.map(|v| number("peak_flops", v)));
        out.push(("bytes_communicated".into(), Field::Count(self.bytes_communicated)));
        out.push(number("waiting", self.waiting));
        out.push(("memory_bytes".into(), Field::Count(self.memory_bytes)));
        out
    }
}

impl Event {
    /// Its kind: the value of `event`.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::Step(_) => "step",
            Event::Evaluation { .. } => "evaluation",
            Event::Epoch { .. } => "epoch",
            Event::Done { .. } => "done",
        }
    }

    /// Its fields in order, without its kind and the time.
    pub fn fields(&self) -> Vec<(String, Field)> {
        let count = |name: &str, n: u64| (name.to_string(), Field::Count(n));
        let number = |name: &str, v: f64| (name.to_string(), Field::Number(v));
        match self {
            Event::Step(s) => s.fields(),
            Event::Evaluation { step, set, eval, seconds } => {
                let mut out = vec![count("step", *step), ("set".into(), Field::Text(set.clone()))];
                out.extend(eval.fields());
                out.push(number("seconds", *seconds));
                out
            }
            Event::Epoch { epoch, step, train_loss, eval, seconds } => {
                let mut out = vec![count("epoch", u64::from(*epoch)), count("step", *step)];
                out.push(number("train_loss", *train_loss));
                out.extend(eval.iter().flat_map(Evaluation::fields));
                out.push(number("seconds", *seconds));
                out
            }
            Event::Done { steps, epochs, seconds, peak_memory_bytes, peak_value_bytes } => vec![
                count("steps", *steps),
                count("epochs", u64::from(*epochs)),
                number("seconds", *seconds),
                count("peak_memory_bytes", *peak_memory_bytes),
                count("peak_value_bytes", *peak_value_bytes),
            ],
        }
    }

    /// The line, without its end.
    pub fn line(&self) -> String {
        // Maps with text keys, texts and numbers always serialize; numbers that JSON lacks (NaN) become null.
        serde_json::to_string(&Line { event: self, time: now() }).unwrap_or_default()
    }
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Field::Count(n) => serializer.serialize_u64(*n),
            Field::Number(v) => serializer.serialize_f64(*v),
            Field::Text(t) => serializer.serialize_str(t),
        }
    }
}

/// An event with its time.
struct Line<'a> {
    event: &'a Event,
    time: String,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("event", self.event.kind())?;
        for (name, value) in self.event.fields() {
            map.serialize_entry(&name, &value)?;
        }
        map.serialize_entry("time", &self.time)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line without its time, which is the last of it.
    fn line(event: &Event) -> String {
        let line = event.line();
        let (said, time) = line.rsplit_once(",\"time\":\"").map_or(("", ""), |parts| parts);
        // Such as 2026-01-31T12:00:00.250Z.
        assert!(time.len() == 26 && time.ends_with("Z\"}") && time.as_bytes()[10] == b'T', "{time}");
        format!("{said}}}")
    }

    #[test]
    fn lines_are_as_documented() {
        let step = StepMetrics {
            step: 1,
            loss: 2.5,
            values: vec![("accuracy".into(), 0.5)],
            learning_rate: Some(0.1),
            seconds: 0.5,
            examples_per_second: 200.0,
            model_flops: 1000,
            bytes_communicated: 64,
            memory_bytes: 4096,
            ..StepMetrics::default()
        };
        assert_eq!(
            line(&Event::Step(step)),
            r#"{"event":"step","step":1,"loss":2.5,"train_accuracy":0.5,"learning_rate":0.1,"seconds":0.5,"examples_per_second":200.0,"model_flops":1000,"bytes_communicated":64,"waiting":0.0,"memory_bytes":4096}"#
        );
        let eval = Evaluation { loss: 0.1, metrics: vec![("accuracy".into(), 0.97), ("top5".into(), 1.0)] };
        assert_eq!((eval.value("top5"), eval.value("loss"), eval.value("f1")), (Some(1.0), Some(0.1), None));
        let set = "test".to_string();
        assert_eq!(
            line(&Event::Evaluation { step: 6, set, eval: eval.clone(), seconds: 1.5 }),
            r#"{"event":"evaluation","step":6,"set":"test","eval_loss":0.1,"eval_accuracy":0.97,"eval_top5":1.0,"seconds":1.5}"#
        );
        assert_eq!(
            line(&Event::Epoch { epoch: 1, step: 6, train_loss: 0.2, eval: Some(eval), seconds: 3.5 }),
            r#"{"event":"epoch","epoch":1,"step":6,"train_loss":0.2,"eval_loss":0.1,"eval_accuracy":0.97,"eval_top5":1.0,"seconds":3.5}"#
        );
        assert_eq!(
            line(&Event::Epoch { epoch: 2, step: 12, train_loss: f64::NAN, eval: None, seconds: 1.0 }),
            r#"{"event":"epoch","epoch":2,"step":12,"train_loss":null,"seconds":1.0}"#
        );
        assert_eq!(
            line(&Event::Done {
                steps: 6,
                epochs: 1,
                seconds: 1.0,
                peak_memory_bytes: 4096,
                peak_value_bytes: 1024
            }),
            r#"{"event":"done","steps":6,"epochs":1,"seconds":1.0,"peak_memory_bytes":4096,"peak_value_bytes":1024}"#
        );
    }
}
