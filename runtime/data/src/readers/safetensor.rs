//! One tensor of a `.safetensors` file.

use super::array::{Elem, Header, TensorFile, list};
use super::bytes::Bytes;
use safetensors::tensor::Metadata;

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header, and finds the tensor of that name, or the only one.
pub(crate) fn open(mut bytes: Bytes, name: Option<&str>) -> Result<TensorFile, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("it is not a .safetensors file: {e}");
    let len = u64::from_le_bytes(bytes.array("the length of its header").map_err(|e| wrong(&e))?);
    if len > MAX_HEADER {
        return Err(wrong(&format!("its header should take {len} bytes")));
    }
    let header = bytes.take(len as usize, "its header").map_err(|e| wrong(&e))?;
    let header: Metadata = serde_json::from_slice(&header).map_err(|e| wrong(&e))?;
    let mut names = header.offset_keys();
    names.sort_unstable();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = match (name, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => return Err(format!("it has {}; write `FILE:TENSOR`", list("tensors", &names))),
    };
    let Some(info) = header.info(name) else {
        return Err(format!("it has no tensor `{name}`; it has {}", list("tensors", &names)));
    };
    let Some(elem) = Elem::of(info.dtype) else {
        let has = info.dtype;
        return Err(format!("its tensor `{name}` has elements of {has:?}, which inputs cannot have"));
    };
    if info.shape.is_empty() {
        return Err(format!("its tensor `{name}` has no dims; the first dim must count examples"));
    }
    let (start, end) = info.data_offsets;
    let after = header.data_len() - end;
    let what = format!("its {:?} elements of {}", info.shape, elem.name());
    let size = elem.size_of(&info.shape)?;
    let elements = bytes.elements((start as u64, size, after as u64), &what)?;
    Ok(TensorFile { header: Header::plain(elem, info.shape.clone()), elements })
}
