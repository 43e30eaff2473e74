//! The table of runs as a file of Apache Parquet: one row group, columns that may lack values.

use meshwright_report::results::{Cell, Column, ColumnKind, ResultTable};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;
use std::sync::Arc;

/// The file.
pub(super) fn bytes(t: &ResultTable) -> Result<Vec<u8>, String> {
    file(t).map_err(|e| e.to_string())
}

fn file(t: &ResultTable) -> Result<Vec<u8>, ParquetError> {
    let fields = t.columns.iter().map(|c| field(c).map(Arc::new)).collect::<Result<_, _>>()?;
    let schema = Arc::new(Type::group_type_builder("runs").with_fields(fields).build()?);
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(WriterProperties::default()))?;
    let mut group = writer.next_row_group()?;
    for (at, column) in t.columns.iter().enumerate() {
        let Some(mut into) = group.next_column()? else { break };
        let cells: Vec<&Cell> = t.rows.iter().map(|r| &r[at]).collect();
        match column.kind {
            ColumnKind::Text => write::<ByteArrayType>(&mut into, &cells, |c| match c {
                Cell::Text(text) => Some(ByteArray::from(text.as_str())),
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
    writer.close()?;
    Ok(out)
}

fn field(column: &Column) -> Result<Type, ParquetError> {
    let (physical, logical) = match column.kind {
        ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
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
