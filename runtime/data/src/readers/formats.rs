//! The formats of data files, told apart by their names and first bytes.

use super::array::{Header, TensorFile};
use super::bytes::{Bytes, ReadError};
use super::table_fault::Unread;
use super::{csv_table, npz, safetensor, signed};
use crate::source::FileRef;
use meshwright_files::try_reserve;
use meshwright_plan::InputDecl;

/// Opens a file of any of the formats: IDX, `.npy`, a tensor of a `.safetensors` file, each also gzipped, an array of an `.npz`
/// file, or columns of a CSV file. Of all but the last only the header is read. An error says what is wrong, without the
/// file's name.
pub(crate) fn open(file: &FileRef, decl: &InputDecl) -> Result<TensorFile, Unread> {
    let opened = open_any(file, decl)?;
    if opened.header.shape.is_empty() {
        return Err("it is one number without dims; the first dim must count examples".to_string().into());
    }
    Ok(opened)
}

fn open_any(file: &FileRef, decl: &InputDecl) -> Result<TensorFile, Unread> {
    let part = file.parts.first().map(String::as_str);
    if file.is(".npz") {
        return Ok(npz::open(&file.path, part)?);
    }
    let bytes = Bytes::open(&file.path)?;
    if file.is(".csv") {
        return csv_table::open(bytes, file, decl);
    }
    if file.is(".safetensors") {
        return Ok(safetensor::open(bytes, part)?);
    }
    Ok(signed::open(bytes)?)
}

/// The same tensor with the last dim varying fastest. One in Fortran order is read whole for this.
pub(super) fn row_major(opened: TensorFile) -> Result<TensorFile, String> {
    let TensorFile { header, elements } = opened;
    let several = header.shape.iter().filter(|n| **n != 1).count() > 1;
    if !header.fortran || !several {
        return Ok(TensorFile { header: Header { fortran: false, ..header }, elements });
    }
    let (width, size) = (header.elem.bytes(), elements.size());
    let mut from = Vec::new();
    try_reserve(&mut from, size).map_err(|_| {
        format!("it takes {size} bytes in Fortran order, more than memory has; save it with `numpy.ascontiguousarray`")
    })?;
    elements
        .each(|piece| {
            from.extend_from_slice(piece);
            Ok(())
        })
        .map_err(|e| match e {
            ReadError::Unreadable(why) => why,
            ReadError::Said(d) => d.message.clone(),
        })?;
    // What varies fastest in the file comes last in memory.
    let shape: Vec<usize> = header.shape.iter().rev().copied().collect();
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    let to = meshwright_files::tensor::permuted(&from, width, &shape, &order);
    let elements = Bytes::memory(to).elements((0, size, 0), "its elements")?;
    Ok(TensorFile { header: Header { fortran: false, ..header }, elements })
}
