//! NumPy's `.npy`, versions 1 to 3: little-endian arrays in C order.

use super::array::{Array, Elem};
use super::bytes::Bytes;

/// Reads what follows the four bytes `93 N U M`.
pub(super) fn read(mut bytes: Bytes) -> Result<Array, String> {
    if bytes.array(".npy's signature")? != *b"PY" {
        return Err("it starts as .npy, but its signature is broken".into());
    }
    let [major, _minor] = bytes.array("its version")?;
    let len = match major {
        1 => usize::from(u16::from_le_bytes(bytes.array("the length of its header")?)),
        2 | 3 => u32::from_le_bytes(bytes.array("the length of its header")?) as usize,
        _ => return Err(format!("it is .npy of version {major}; 1 to 3 are known")),
    };
    if len > 1 << 20 {
        return Err(format!("its header should take {len} bytes, more than any array's does"));
    }
    let header = bytes.take(len, "its header")?;
    let header = std::str::from_utf8(&header).map_err(|_| "its header is not text".to_string())?;
    let (elem, shape) = parse(header)?;
    let data = bytes.take(elem.size_of(&shape)?, &format!("its {shape:?} elements of {}", elem.name()))?;
    bytes.end()?;
    Ok(Array { elem, shape, data })
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(header: &str) -> Result<(Elem, Vec<usize>), String> {
    let field = |name: &str| {
        let key = format!("'{name}':");
        let at = header.find(&key).ok_or_else(|| format!("its header has no `{name}`"))?;
        Ok::<&str, String>(header[at + key.len()..].trim_start())
    };
    let descr = field("descr")?;
    let descr = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|d| d.0);
    let elem = match descr.ok_or("its elements are records; plain numbers are known")? {
        "|b1" => Elem::Bool,
        "|u1" => Elem::U8,
        "|i1" => Elem::I8,
        "<i2" => Elem::I16,
        "<i4" => Elem::I32,
        "<i8" => Elem::I64,
        "<f4" => Elem::F32,
        "<f8" => Elem::F64,
        other => {
            let known = "|b1 |u1 |i1 <i2 <i4 <i8 <f4 <f8";
            return Err(format!("its elements are `{other}`; known are {known}"));
        }
    };
    if !field("fortran_order")?.starts_with("False") {
        return Err("its elements are in Fortran order; save it with `numpy.ascontiguousarray`".into());
    }
    let shape = field("shape")?.strip_prefix('(').and_then(|s| s.split_once(')')).map(|s| s.0);
    let shape = shape
        .ok_or("its header has no shape in brackets")?
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().map_err(|_| format!("`{s}` in its shape is not a size")))
        .collect::<Result<Vec<usize>, String>>()?;
    if shape.is_empty() {
        return Err("it is one number without dims; the first dim must count examples".into());
    }
    Ok((elem, shape))
}
