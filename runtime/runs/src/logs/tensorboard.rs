//! Event files of TensorBoard: records of protocol buffers, each with its length and checksums (the format of TFRecord files and
//! `event.proto` of TensorFlow).

use super::sink::{EventSink, LogStart};
use crate::metrics::{Event, Field};
use crate::run_error::unusable;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use prost::Message;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// `tensorflow.Event`, as far as it is written here.
#[derive(Clone, PartialEq, Message)]
struct TensorboardEvent {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<ScalarSummary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct ScalarSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ScalarValue>,
}

/// `tensorflow.Summary.Value` of a number.
#[derive(Clone, PartialEq, Message)]
struct ScalarValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// `tensorflow.SessionLog`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.START`: what other files of the folder have of this step and later ones no longer counts.
const START: i32 = 1;

/// The name of the folder of event files of a run.
pub(crate) const FOLDER: &str = "tensorboard";

/// The folder of event files of a run.
pub fn tensorboard_in(run: &Path) -> Folder {
    Folder::at(run).below(FOLDER)
}

/// A file of events.
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file beside those of earlier starts.
    pub(super) fn open(start: &LogStart<'_>) -> Checked<EventFile> {
        let folder = tensorboard_in(start.run);
        let shown = folder.path();
        let folder = folder.create().map_err(|e| unusable(&shown, &e))?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // TensorBoard reads the files of a folder in the order of their names.
        let name =
            format!("events.out.tfevents.{:010}.{:09}.meshwright", nanos.as_secs(), nanos.subsec_nanos());
        let path = shown.join(&name);
        let file = folder.file(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND);
        let file = file.map_err(|e| unusable(&path, &e))?;
        let mut out = EventFile { path, file };
        out.record(TensorboardEvent { file_version: Some("brain.Event:2".into()), ..Default::default() })?;
        let session_log = Some(SessionLog { status: START });
        out.record(TensorboardEvent { step: start.step as i64 + 1, session_log, ..Default::default() })?;
        Ok(out)
    }

    fn record(&mut self, event: TensorboardEvent) -> Checked<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let data = TensorboardEvent { wall_time: now.as_secs_f64(), ..event }.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        let mut bytes = Vec::with_capacity(data.len() + 16);
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&masked(&length));
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(&masked(&data));
        self.file.write_all(&bytes).map_err(|e| unusable(&self.path, &e))
    }
}

/// The checksum of a TFRecord: a rotated CRC-32C with a constant added, so that a checksum of data that holds checksums differs.
fn masked(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

impl EventSink for EventFile {
    fn append(&mut self, _: &str, event: &Event) -> Checked<()> {
        let (group, step) = match event {
            Event::Step(s) => ("train", s.step),
            Event::Evaluation { step, set, .. } => (set.as_str(), *step),
            Event::Epoch { step, .. } => ("epoch", *step),
            Event::Done { .. } => return Ok(()),
        };
        let number = |f: &Field| match f {
            Field::Count(n) => Some(*n as f32),
            Field::Number(v) => Some(*v as f32),
            Field::Text(_) => None,
        };
        let plain = |name: &str| {
            let name = name.strip_prefix("train_").or(name.strip_prefix("eval_")).unwrap_or(name);
            format!("{group}/{name}")
        };
        let fields = event.fields().into_iter().filter(|(name, _)| name != "step");
        let value = fields
            .filter_map(|(name, f)| Some(ScalarValue { tag: plain(&name), simple_value: Some(number(&f)?) }))
            .collect();
        let summary = Some(ScalarSummary { value });
        self.record(TensorboardEvent { step: step as i64, summary, ..Default::default() })
    }
}
