//! Tables in files, written part by part: all columns, with numbers as they are.

use super::parquet::ParquetTable;
use crate::output::json::object;
use meshwright_files::text::csv_text;
use meshwright_report::results::{Cell, Column, ResultTable};
use serde_json::Value;
use std::io::Write;

/// A file of a table that is being written.
pub(crate) enum TableWriter<W: Write + Send> {
    /// Comma-separated values below their names.
    Csv(csv::Writer<W>),
    /// An object a line; what is missing, and numbers that JSON lacks, are null.
    Jsonl(W),
    /// A row group for each part.
    Parquet(ParquetTable<W>),
}

fn said<E: std::fmt::Display>(e: E) -> String {
    e.to_string()
}

impl<W: Write + Send> TableWriter<W> {
    /// CSV.
    pub(crate) fn csv(out: W, columns: &[Column]) -> Result<Self, String> {
        let mut out = csv::Writer::from_writer(out);
        out.write_record(columns.iter().map(|c| csv_text(&c.name).into_owned())).map_err(said)?;
        Ok(TableWriter::Csv(out))
    }

    /// JSON lines.
    pub(crate) fn jsonl(out: W, _: &[Column]) -> Result<Self, String> {
        Ok(TableWriter::Jsonl(out))
    }

    /// Apache Parquet.
    pub(crate) fn parquet(out: W, columns: &[Column]) -> Result<Self, String> {
        ParquetTable::new(out, columns).map(TableWriter::Parquet).map_err(said)
    }

    /// Adds the rows of a table that has the columns of the file.
    pub(crate) fn write(&mut self, t: &ResultTable) -> Result<(), String> {
        match self {
            TableWriter::Csv(out) => {
                t.rows.iter().try_for_each(|row| out.write_record(row.iter().map(exact))).map_err(said)
            }
            TableWriter::Jsonl(out) => {
                t.rows.iter().try_for_each(|row| writeln!(out, "{}", line(&t.columns, row)?).map_err(said))
            }
            TableWriter::Parquet(out) => out.write(t).map_err(said),
        }
    }

    /// Ends the file.
    pub(crate) fn finish(self) -> Result<W, String> {
        match self {
            TableWriter::Csv(out) => out.into_inner().map_err(said),
            TableWriter::Jsonl(mut out) => out.flush().map(|()| out).map_err(said),
            TableWriter::Parquet(out) => out.finish().map_err(said),
        }
    }
}

fn exact(c: &Cell) -> String {
    match c {
        Cell::Missing => String::new(),
        Cell::Text(text) => csv_text(text).into_owned(),
        Cell::Count(n) => n.to_string(),
        // Small ones with an exponent: readers lose digits behind many zeros.
        Cell::Number(v) => format!("{v:?}"),
    }
}

/// Fields in the order of the columns.
fn line(columns: &[Column], row: &[Cell]) -> Result<String, String> {
    let value = |c: &Cell| match c {
        Cell::Missing => Value::Null,
        Cell::Text(text) => text.clone().into(),
        Cell::Count(n) => (*n).into(),
        Cell::Number(v) => (*v).into(),
    };
    let fields = columns.iter().zip(row).map(|(c, cell)| (c.name.clone(), value(cell)));
    serde_json::to_string(&object(fields)).map_err(said)
}
