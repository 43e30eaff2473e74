//! Tables as files of Apache Parquet: columns that may lack values.

use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable};
use meshwright_runs::clock::milliseconds_of;
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// A file that is being written.
pub(crate) struct ParquetTable<W: Write + Send>(SerializedFileWriter<W>);

impl<W: Write + Send> ParquetTable<W> {
    /// One with these columns.
    pub(super) fn new(out: W, columns: &[Column]) -> Result<Self, ParquetError> {
        let fields = columns.iter().map(|c| field(c).map(Arc::new)).collect::<Result<_, _>>()?;
        let schema = Arc::new(Type::group_type_builder("runs").with_fields(fields).build()?);
        SerializedFileWriter::new(out, schema, Arc::new(WriterProperties::default())).map(ParquetTable)
    }

    /// Adds the rows of a table as a row group.
    pub(super) fn write(&mut self, t: &ResultTable) -> Result<(), ParquetError> {
        let mut group = self.0.next_row_group()?;
        for (at, column) in t.columns.iter().enumerate() {
            let Some(mut into) = group.next_column()? else { break };
            let cells: Vec<&Cell> = t.rows.iter().map(|r| &r[at]).collect();
            match column.kind {
                ColumnKind::Text => write::<ByteArrayType>(&mut into, &cells, |c| match c {
                    Cell::Text(text) => Some(ByteArray::from(text.as_str())),
                    _ => None,
                })?,
                ColumnKind::Time => write::<Int64Type>(&mut into, &cells, |c| match c {
                    Cell::Text(time) => milliseconds_of(time),
                    _ => None,
                })?,
                // Seeds above 2^63 are no numbers of TOML, which sweeps are kept in.
                ColumnKind::Count => write::<Int64Type>(&mut into, &cells, |c| match c {
                    Cell::Count(n) => i64::try_from(*n).ok(),
                    _ => None,
                })?,
                ColumnKind::Number => write::<DoubleType>(&mut into, &cells, |c| match c {
                    Cell::Number(v) => Some(*v),
                    _ => None,
                })?,
            }
            into.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Ends the file.
    pub(super) fn finish(self) -> Result<W, ParquetError> {
        self.0.into_inner()
    }
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match column.kind {
        ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnKind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
        ColumnKind::Count => (Physical::INT64, None),
        ColumnKind::Number => (Physical::DOUBLE, None),
    };
    let field = Type::primitive_type_builder(&column.name, physical).with_repetition(Repetition::OPTIONAL);
    field.with_logical_type(logical).build()
}

/// Values that are there, and for each row whether it has one.
fn write<T: DataType>(
    into: &mut SerializedColumnWriter<'_>,
    cells: &[&Cell],
    value: impl Fn(&Cell) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let all: Vec<Option<T::T>> = cells.iter().map(|c| value(c)).collect();
    let there: Vec<i16> = all.iter().map(|v| i16::from(v.is_some())).collect();
    let values: Vec<T::T> = all.into_iter().flatten().collect();
    into.typed::<T>().write_batch(&values, Some(&there), None)?;
    Ok(())
}
