//! Formats that begin with a signature: IDX and `.npy`.

use super::array::TensorFile;
use super::bytes::Bytes;
use super::{idx, npy};

/// Opens bytes that begin with the signature of their format.
pub(crate) fn open(mut bytes: Bytes) -> Result<TensorFile, String> {
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
