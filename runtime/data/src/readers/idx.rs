//! IDX, the format of MNIST: two zero bytes, a type, the number of dims, their sizes and the elements, all big-endian.

use super::array::{Elem, Header, TensorFile};
use super::bytes::Bytes;

/// Reads the header that follows the four bytes `00 00 code dims`.
pub(crate) fn open(mut bytes: Bytes, code: u8, dims: u8) -> Result<TensorFile, String> {
    let elem = match code {
        0x08 => Elem::U8,
        0x09 => Elem::I8,
        0x0b => Elem::I16,
        0x0c => Elem::I32,
        0x0d => Elem::F32,
        0x0e => Elem::F64,
        _ => return Err(format!("it starts as IDX, but {code:#04x} is not an element type of that format")),
    };
    let sizes = bytes.take(4 * usize::from(dims), "its header")?;
    let shape: Vec<usize> = sizes
        .chunks_exact(4)
        .map(|b| u32::from_be_bytes(meshwright_files::tensor::array(b)) as usize)
        .collect();
    let what = format!("its {shape:?} elements of {}", elem.name());
    let elements = bytes.elements((0, elem.size_of(&shape)?, 0), &what)?;
    Ok(TensorFile { header: Header { big_endian: true, ..Header::plain(elem, shape) }, elements })
}
