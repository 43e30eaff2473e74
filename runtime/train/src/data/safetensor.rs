//! One tensor of a `.safetensors` file.

use super::array::{Elem, Header, TensorFile, list};
use super::bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header, and finds the tensor of that name, or the only one.
pub(super) fn open(mut bytes: Bytes, name: Option<&str>) -> Result<TensorFile, String> {
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
    let elem = match info.dtype {
        Dtype::BOOL => Elem::Bool,
        Dtype::U8 => Elem::U8,
        Dtype::I8 => Elem::I8,
        Dtype::U16 => Elem::U16,
        Dtype::I16 => Elem::I16,
        Dtype::U32 => Elem::U32,
        Dtype::I32 => Elem::I32,
        Dtype::U64 => Elem::U64,
        Dtype::I64 => Elem::I64,
        Dtype::F16 => Elem::F16,
        Dtype::BF16 => Elem::BF16,
        Dtype::F32 => Elem::F32,
        Dtype::F64 => Elem::F64,
        other => {
            return Err(format!("its tensor `{name}` has elements of {other:?}, which inputs cannot have"));
        }
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
