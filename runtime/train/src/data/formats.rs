//! The formats of data files, told apart by their names and first bytes.

use super::array::{Header, Opened};
use super::bytes::{Bytes, Stop};
use super::source::FileRef;
use super::{csv_table, idx, npy, npz, safetensor};
use meshwright_plan::InputDecl;

/// Opens a file of any of the formats: IDX, `.npy`, a tensor of a `.safetensors` file, each also gzipped, an array of an `.npz`
/// file, or columns of a CSV file. Of all but the last only the header is read. An error says what is wrong, without the
/// file's name.
pub(super) fn open(file: &FileRef, decl: &InputDecl) -> Result<Opened, String> {
    let part = file.parts.first().map(String::as_str);
    if file.is(".npz") {
        return npz::open(&file.path, part);
    }
    let bytes = Bytes::open(&file.path)?;
    if file.is(".csv") {
        return csv_table::open(bytes, &file.parts, decl);
    }
    if file.is(".safetensors") {
        return safetensor::open(bytes, part);
    }
    signed(bytes)
}

/// Opens bytes that begin with the signature of their format.
pub(super) fn signed(mut bytes: Bytes) -> Result<Opened, String> {
    let head: [u8; 4] = bytes.array("its first four bytes")?;
    let opened = match head {
        [0, 0, code, dims] => idx::open(bytes, code, dims)?,
        [0x93, b'N', b'U', b'M'] => npy::open(bytes)?,
        _ => {
            return Err(format!(
                "its first bytes are {:02x} {:02x} {:02x} {:02x}: neither IDX (00 00) nor .npy (93 4e 55 4d)",
                head[0], head[1], head[2], head[3]
            ));
        }
    };
    Ok(opened)
}

/// The same tensor with the last dim varying fastest. One in Fortran order is read whole for this.
pub(super) fn row_major(opened: Opened) -> Result<Opened, String> {
    let Opened { header, elements } = opened;
    let several = header.shape.iter().filter(|n| **n != 1).count() > 1;
    if !header.fortran || !several {
        return Ok(Opened { header: Header { fortran: false, ..header }, elements });
    }
    let (width, size) = (header.elem.bytes(), elements.size());
    let mut from = Vec::new();
    from.try_reserve_exact(size).map_err(|_| {
        format!("it takes {size} bytes in Fortran order, more than memory has; save it with `numpy.ascontiguousarray`")
    })?;
    elements
        .each(|piece| {
            from.extend_from_slice(piece);
            Ok(())
        })
        .map_err(|e| match e {
            Stop::Unreadable(why) => why,
            Stop::Said(d) => d.message.clone(),
        })?;
    let mut to = Vec::with_capacity(size);
    let mut index = vec![0; header.shape.len()];
    let strides: Vec<usize> = header
        .shape
        .iter()
        .scan(width, |stride, n| Some(std::mem::replace(stride, *stride * n)))
        .collect();
    for _ in 0..size / width {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        to.extend_from_slice(&from[at..at + width]);
        for (i, n) in index.iter_mut().zip(&header.shape).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
    let elements = Bytes::memory(to).elements((0, size, 0), "its elements")?;
    Ok(Opened { header: Header { fortran: false, ..header }, elements })
}

/// `the tensors `a`, `b`, …`, at most eight of them.
pub(super) fn list(what: &str, names: &[&str]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => format!("no {what}"),
        n if n > MOST => format!("the {n} {what} {shown}, …"),
        _ => format!("the {what} {shown}"),
    }
}
