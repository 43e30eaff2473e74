//! One tensor of a `.safetensors` file.

use super::array::{Array, Elem};
use super::bytes::Bytes;
use safetensors::{Dtype, SafeTensors};

/// Reads the tensor of that name, or the only one.
pub(super) fn read(bytes: Bytes, name: Option<&str>) -> Result<Array, String> {
    let bytes = bytes.rest()?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| format!("it is not a .safetensors file: {e}"))?;
    let mut names = file.names();
    names.sort_unstable();
    let name = match (name, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => return Err(format!("it has {}; write `FILE:TENSOR`", list(&names))),
    };
    let view =
        file.tensor(name).map_err(|_| format!("it has no tensor `{name}`; it has {}", list(&names)))?;
    let elem = match view.dtype() {
        Dtype::BOOL => Elem::Bool,
        Dtype::U8 => Elem::U8,
        Dtype::I8 => Elem::I8,
        Dtype::I16 => Elem::I16,
        Dtype::I32 => Elem::I32,
        Dtype::I64 => Elem::I64,
        Dtype::F32 => Elem::F32,
        Dtype::F64 => Elem::F64,
        other => {
            return Err(format!("its tensor `{name}` has elements of {other:?}, which inputs cannot have"));
        }
    };
    if view.shape().is_empty() {
        return Err(format!("its tensor `{name}` has no dims; the first dim must count examples"));
    }
    Ok(Array { elem, shape: view.shape().to_vec(), data: view.data().to_vec() })
}

fn list(names: &[&str]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "no tensors".into(),
        n if n > MOST => format!("the {n} tensors {shown}, …"),
        _ => format!("the tensors {shown}"),
    }
}
