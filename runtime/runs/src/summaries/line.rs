//! A line of `metrics.jsonl`, read for what curves are made of. Logs of long runs are hundreds of megabytes: what is not asked
//! for is skipped without being parsed, and nothing is allocated for the line of a step.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// What a line tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LineKind {
    Step,
    Evaluation,
    Epoch,
    Done,
    /// Something of a later version.
    #[default]
    Other,
}

/// The numbers of a line. Those that JSON lacks are `NaN`.
#[derive(Debug, Default)]
pub(super) struct LogLine<'a> {
    pub(super) kind: LineKind,
    pub(super) step: u64,
    pub(super) epoch: u32,
    /// The split of an evaluation.
    pub(super) set: Option<Cow<'a, str>>,
    /// The loss of a step.
    pub(super) loss: f64,
    /// The mean loss of an epoch.
    pub(super) train_loss: f64,
    pub(super) seconds: f64,
    pub(super) memory: u64,
    pub(super) communicated: u64,
    /// `train_NAME` of a step.
    pub(super) train: Vec<(Cow<'a, str>, f64)>,
    /// `eval_NAME`, the loss among them.
    pub(super) eval: Vec<(Cow<'a, str>, f64)>,
}

impl<'a> LogLine<'a> {
    /// The line; none where it is damaged.
    pub(super) fn parse(line: &'a [u8]) -> Option<LogLine<'a>> {
        serde_json::from_slice(line).ok()
    }
}

impl<'de> Deserialize<'de> for LogLine<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

/// A text that is borrowed from the line where it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.into())))
            }
        }
        deserializer.deserialize_str(Borrowed)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = LogLine<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event of a run")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut line = LogLine::default();
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "event" => line.kind = kind(&map.next_value::<Text<'de>>()?.0),
                "step" | "steps" => line.step = map.next_value()?,
                "epoch" => line.epoch = map.next_value()?,
                "set" => line.set = Some(map.next_value::<Text<'de>>()?.0),
                "loss" => line.loss = number(&mut map)?,
                "seconds" => line.seconds = number(&mut map)?,
                "memory_bytes" | "peak_memory_bytes" => line.memory = map.next_value()?,
                "bytes_communicated" => line.communicated = map.next_value()?,
                "train_loss" if line.kind == LineKind::Epoch => line.train_loss = number(&mut map)?,
                _ if key.starts_with("train_") => {
                    let value = number(&mut map)?;
                    line.train.push((without(key, "train_"), value));
                }
                _ if key.starts_with("eval_") => {
                    let value = number(&mut map)?;
                    line.eval.push((without(key, "eval_"), value));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(line)
    }
}

fn kind(name: &str) -> LineKind {
    match name {
        "step" => LineKind::Step,
        "evaluation" => LineKind::Evaluation,
        "epoch" => LineKind::Epoch,
        "done" => LineKind::Done,
        _ => LineKind::Other,
    }
}

fn number<'de, A: MapAccess<'de>>(map: &mut A) -> Result<f64, A::Error> {
    Ok(map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN))
}

fn without<'a>(key: Cow<'a, str>, prefix: &str) -> Cow<'a, str> {
    match key {
        Cow::Borrowed(key) => Cow::Borrowed(key.strip_prefix(prefix).unwrap_or(key)),
        Cow::Owned(key) => Cow::Owned(key.strip_prefix(prefix).map_or(key.clone(), String::from)),
    }
}
