//! What a run reports while it goes, one JSON object a line: in `metrics.jsonl`, and on standard output in JSON format.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A training step is done: `{"event":"step","step":1,"loss":2.3}`.
    Step {
        /// Its number, from 1.
        step: u64,
        /// Its loss.
        loss: f64,
    },
    /// An epoch is done:
    /// `{"event":"epoch","epoch":1,"train_loss":0.2,"eval_loss":0.1,"eval_accuracy":0.97,"seconds":3.1}`.
    Epoch {
        /// Its number, from 1.
        epoch: u32,
        /// Mean of its steps' losses, those before a resume included.
        train_loss: f64,
        /// What was measured on the test set, where there is one.
        eval: Option<Evaluation>,
        /// Wall time of the epoch with its evaluation, in this process.
        seconds: f64,
    },
    /// The run is done: `{"event":"done","steps":600,"epochs":1,"seconds":3.2}`.
    Done {
        /// Steps done, those before a resume included.
        steps: u64,
        /// Epochs done.
        epochs: u32,
        /// Wall time of this process's part of the run.
        seconds: f64,
    },
}

/// Loss and metrics over a whole set of examples.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The loss.
    pub loss: f64,
    /// The metrics by name, in the order of the model.
    pub metrics: Vec<(String, f64)>,
}

impl Event {
    /// The line, without its end.
    pub fn line(&self) -> String {
        // Maps with text keys and numbers always serialize; numbers that JSON lacks (NaN) become null.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Event::Step { step, loss } => {
                map.serialize_entry("event", "step")?;
                map.serialize_entry("step", step)?;
                map.serialize_entry("loss", loss)?;
            }
            Event::Epoch { epoch, train_loss, eval, seconds } => {
                map.serialize_entry("event", "epoch")?;
                map.serialize_entry("epoch", epoch)?;
                map.serialize_entry("train_loss", train_loss)?;
                if let Some(eval) = eval {
                    map.serialize_entry("eval_loss", &eval.loss)?;
                    // A metric that is itself called `loss` would take the loss's key.
                    for (name, value) in eval.metrics.iter().filter(|m| m.0 != "loss") {
                        map.serialize_entry(&format!("eval_{name}"), value)?;
                    }
                }
                map.serialize_entry("seconds", seconds)?;
            }
            Event::Done { steps, epochs, seconds } => {
                map.serialize_entry("event", "done")?;
                map.serialize_entry("steps", steps)?;
                map.serialize_entry("epochs", epochs)?;
                map.serialize_entry("seconds", seconds)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_documented() {
        assert_eq!(Event::Step { step: 1, loss: 2.5 }.line(), r#"{"event":"step","step":1,"loss":2.5}"#);
        let eval = Evaluation { loss: 0.1, metrics: vec![("accuracy".into(), 0.97), ("top5".into(), 1.0)] };
        assert_eq!(
            Event::Epoch { epoch: 1, train_loss: 0.2, eval: Some(eval), seconds: 3.5 }.line(),
            r#"{"event":"epoch","epoch":1,"train_loss":0.2,"eval_loss":0.1,"eval_accuracy":0.97,"eval_top5":1.0,"seconds":3.5}"#
        );
        assert_eq!(
            Event::Epoch { epoch: 2, train_loss: f64::NAN, eval: None, seconds: 1.0 }.line(),
            r#"{"event":"epoch","epoch":2,"train_loss":null,"seconds":1.0}"#
        );
        assert_eq!(
            Event::Done { steps: 6, epochs: 1, seconds: 1.0 }.line(),
            r#"{"event":"done","steps":6,"epochs":1,"seconds":1.0}"#
        );
    }
}
