//! The formats of data files, told apart by their first bytes.

use super::array::Array;
use super::source::FileRef;
use super::{bytes::Bytes, idx, npy, safetensor};

/// Reads a file of any of the formats, told apart by content: IDX, `.npy`, or a tensor of a `.safetensors` file, each also
/// gzipped. An error says what is wrong, without the file's name.
pub(super) fn read(file: &FileRef) -> Result<Array, String> {
    let mut bytes = Bytes::open(&file.path)?;
    if file.tensor.is_some() || file.is_safetensors() {
        return safetensor::read(bytes, file.tensor.as_deref());
    }
    let head: [u8; 4] = bytes.array("its first four bytes")?;
    match head {
        [0, 0, code, dims] => idx::read(bytes, code, dims),
        [0x93, b'N', b'U', b'M'] => npy::read(bytes),
        _ => Err(format!(
            "its first bytes are {:02x} {:02x} {:02x} {:02x}: neither IDX (00 00) nor .npy (93 4e 55 4d)",
            head[0], head[1], head[2], head[3]
        )),
    }
}
