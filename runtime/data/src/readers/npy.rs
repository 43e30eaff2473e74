//! NumPy's `.npy`, versions 1 to 3.

use super::array::{Elem, Header, TensorFile};
use super::bytes::Bytes;

/// Reads the header that follows the four bytes `93 N U M`.
pub(crate) fn open(mut bytes: Bytes) -> Result<TensorFile, String> {
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
    let header = parse(header)?;
    let what = format!("its {:?} elements of {}", header.shape, header.elem.name());
    let elements = bytes.elements((0, header.elem.size_of(&header.shape)?, 0), &what)?;
    Ok(TensorFile { header, elements })
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse(header: &str) -> Result<Header, String> {
    let field = |name: &str| {
        let key = format!("'{name}':");
        let at = header.find(&key).ok_or_else(|| format!("its header has no `{name}`"))?;
        Ok::<&str, String>(header[at + key.len()..].trim_start())
    };
    let descr = field("descr")?;
    let descr = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|d| d.0);
    let descr = descr.ok_or("its elements are records; plain numbers are known")?;
    let elem = match descr.get(1..).unwrap_or_default() {
        "b1" => Elem::Bool,
        "u1" => Elem::U8,
        "i1" => Elem::I8,
        "u2" => Elem::U16,
        "i2" => Elem::I16,
        "u4" => Elem::U32,
        "i4" => Elem::I32,
        "u8" => Elem::U64,
        "i8" => Elem::I64,
        "f2" => Elem::F16,
        "f4" => Elem::F32,
        "f8" => Elem::F64,
        _ => {
            let known = "b1 u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8, after `<`, `>` or `|`";
            return Err(format!("its elements are `{descr}`; known are {known}"));
        }
    };
    if !descr.starts_with(['<', '>', '|', '=']) {
        return Err(format!("its elements are `{descr}`, whose order of bytes is not known"));
    }
    let fortran = field("fortran_order")?;
    let fortran = match (fortran.starts_with("False"), fortran.starts_with("True")) {
        (true, _) => false,
        (_, true) => true,
        _ => return Err("its header does not say whether it is in Fortran order".into()),
    };
    let shape = field("shape")?.strip_prefix('(').and_then(|s| s.split_once(')')).map(|s| s.0);
    let shape = shape
        .ok_or("its header has no shape in brackets")?
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        // Python 2 wrote its long integers so, and NumPy still reads them.
        .map(|s| {
            s.strip_suffix('L').unwrap_or(s).parse().map_err(|_| format!("`{s}` in its shape is not a size"))
        })
        .collect::<Result<Vec<usize>, String>>()?;
    Ok(Header { elem, big_endian: descr.starts_with('>'), fortran, shape })
}
