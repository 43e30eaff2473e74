//! `metrics.csv`: a row for each event, and a column for all that any event says. What an event does not say is empty.

use super::sink::{EventSink, LogStart};
use crate::metrics::Event;
use crate::run_error::unusable;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use meshwright_files::text::csv_text;
use rustix::fs::OFlags;
use serde_json::{Map, Value};
use std::fs::File;
use std::path::PathBuf;

/// The table.
pub(super) struct CsvLog {
    path: PathBuf,
    columns: Vec<String>,
    writer: csv::Writer<File>,
}

impl CsvLog {
    /// Writes the table anew from the lines that are kept: a resumed run tells again what came after its checkpoint.
    pub(super) fn open(start: &LogStart<'_>) -> Checked<CsvLog> {
        const NAME: &str = "metrics.csv";
        let path = start.run.join(NAME);
        let file = Folder::at(start.run).file(NAME, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC);
        let file = file.map_err(|e| unusable(&path, &e))?;
        let mut table = CsvLog { path, columns: columns(start), writer: csv::Writer::from_writer(file) };
        let head = table.writer.write_record(&table.columns).map_err(|e| e.to_string());
        head.map_err(|e| unusable(&table.path, &e))?;
        for line in start.kept.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            table.row(line)?;
        }
        table.flush()?;
        Ok(table)
    }

    fn row(&mut self, line: &[u8]) -> Checked<()> {
        let event: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
        let cell = |name: &String| match event.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => csv_text(text).into_owned(),
            Some(other) => other.to_string(),
        };
        let cells: Vec<String> = self.columns.iter().map(cell).collect();
        self.writer.write_record(&cells).map_err(|e| unusable(&self.path, &e))
    }

    fn flush(&mut self) -> Checked<()> {
        self.writer.flush().map_err(|e| unusable(&self.path, &e))
    }
}

impl EventSink for CsvLog {
    fn append(&mut self, line: &str, _: &Event) -> Checked<()> {
        self.row(line.as_bytes())?;
        self.flush()
    }
}

fn columns(start: &LogStart<'_>) -> Vec<String> {
    let mut out: Vec<String> = ["event", "step", "epoch", "loss"].map(String::from).into();
    out.extend(start.train.iter().map(|n| format!("train_{n}")));
    let scaled = start.scaled.then_some(["loss_scale", "skipped"]);
    out.extend(["learning_rate", "gradient_norm"].map(String::from));
    out.extend(scaled.into_iter().flatten().map(String::from));
    out.extend(["seconds", "examples_per_second", "tokens_per_second"].map(String::from));
    out.extend(["model_flops", "mfu", "peak_flops"].map(String::from));
    out.extend(["bytes_communicated", "waiting", "memory_bytes", "train_loss", "set"].map(String::from));
    out.push("eval_loss".into());
    out.extend(start.eval.iter().filter(|n| *n != "loss").map(|n| format!("eval_{n}")));
    out.extend(["steps", "epochs", "time"].map(String::from));
    out
}
