//! NumPy's `.npz`: a zip file of `.npy` files, one for each name.

use super::array::{TensorFile, list};
use super::bytes::{Bytes, Packed};
use super::signed;
use meshwright_files::text_file::open_text;
use std::io::BufReader;
use std::path::Path;
use zip::{CompressionMethod, ZipArchive};

/// Opens the array of that name, or the only one. An array without compression, as `numpy.savez` writes it, is read
/// from the file directly.
pub(crate) fn open(path: &Path, name: Option<&str>) -> Result<TensorFile, String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".into());
    }
    let file = open_text(path).map_err(|e| e.to_string())?;
    let bad = |e: zip::result::ZipError| format!("it is not a whole .npz file: {e}");
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(bad)?;
    let mut names = Vec::new();
    for name in zip.file_names() {
        let name = name.map_err(bad)?;
        names.push(name.strip_suffix(".npy").unwrap_or(&name).to_string());
    }
    names.sort_unstable();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = match (name, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => return Err(format!("it has {}; write `FILE:NAME`", list("arrays", &names))),
    };
    let member = format!("{name}.npy");
    let member = if names.contains(&name) && zip.index_for_name(&member).is_some() { &member } else { name };
    let Some(index) = zip.index_for_name(member) else {
        return Err(format!("it has no array `{name}`; it has {}", list("arrays", &names)));
    };
    let found = zip.by_index(index).map_err(bad)?;
    let (size, packed) = (found.size(), found.compressed_size());
    if found.compression() == CompressionMethod::Stored {
        let at = found.data_start().ok_or("it does not say where its array starts")?;
        return signed::open(Bytes::part(path, at, size)?);
    }
    if found.compression() != CompressionMethod::Deflated {
        return Err(format!("`{name}` is packed by {:?}; deflate is known", found.compression()));
    }
    let at = found.data_start().ok_or("it does not say where its array starts")?;
    signed::open(Bytes::deflated(path, Packed { part: (at, packed), size, crc: found.crc32() })?)
}
