//! Folders of images: every file is a record, and the folder that it lies in may be its label.

use super::encoded_records::{Encoded, MOST_BYTES, Member};
use super::file_piece::{FilePiece, Location};
use crate::dataset::column::{Column, Values};
use crate::dataset::input_info::{InputInfo, RangeOf};
use crate::source::FileRef;
use crate::source::pattern;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_plan::DType;
use std::path::PathBuf;

/// Whether files are images, by their names.
pub(crate) fn are_images(files: &[FileRef]) -> bool {
    const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];
    files.iter().all(|f| {
        let ending = f.path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        ending.is_some_and(|e| ENDINGS.contains(&e.as_str()))
    })
}

/// The column of an input each of whose records is a file, and their number.
pub(crate) fn images(
    patterns: &[FileRef],
    described: InputInfo,
    shape: Vec<usize>,
    finite: bool,
) -> Checked<(Column, usize)> {
    let paths = paths(patterns, &described)?;
    let mut members = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        let meta = std::fs::metadata(path).and_then(|m| match m.is_file() && m.len() <= MOST_BYTES {
            true => Ok(m.len()),
            false => Err(std::io::Error::other("it is no file, or larger than any image")),
        });
        let file = FileRef { path: path.clone(), parts: Vec::new(), classes: Vec::new() };
        let size = meta.map_err(|e| described.unreadable(&file, &e.to_string()))?;
        members.push(Member { file: i as u32, at: 0, size: size as u32 });
    }
    let records = members.len();
    let encoded = Encoded::new(paths, members, finite);
    encoded.fits(&described, &shape)?;
    Ok((Column { described, shape, first: 0, step: 0, values: Values::Encoded(encoded) }, records))
}

/// The column that has for each of these files the position of its folder in `classes`, and their number.
pub(crate) fn labels(
    patterns: &[FileRef],
    classes: &[String],
    described: InputInfo,
) -> Checked<(Column, usize)> {
    let name = &described.name;
    if described.dtype != DType::I32 {
        let message = format!("input `{name}` is declared as `{}`, but folders are counted", described.dtype);
        return Err(Box::new(Diagnostic::error(codes::E0505, message).help("declare it as `i32`")));
    }
    if let Some((RangeOf::Dim(dim), n)) = described.range.as_ref().filter(|r| r.1 < classes.len()) {
        let message = format!("`{name}` has {} `classes`, but `{dim}` counts {n}", classes.len());
        let help = format!("declare `dim {dim} = {}`", classes.len());
        return Err(Box::new(Diagnostic::error(codes::E0506, message).help(help)));
    }
    let paths = paths(patterns, &described)?;
    let mut data = Vec::with_capacity(4 * paths.len());
    for path in &paths {
        let folder = path.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy();
        let Some(class) = classes.iter().position(|c| *c == folder) else {
            let message =
                format!("`{}` lies in the folder `{folder}`, which `{name}` does not know", path.display());
            let d = Diagnostic::error(codes::E0506, message);
            return Err(Box::new(match nearest(&folder, classes.iter().map(String::as_str)) {
                Some(near) => d.help(format!("did you mean `{folder}` where `classes` has `{near}`?")),
                None => d.help(format!("add `{folder}` to its `classes`")),
            }));
        };
        data.extend((class as i32).to_le_bytes());
    }
    let file =
        FileRef { path: paths.first().cloned().unwrap_or_default(), parts: Vec::new(), classes: Vec::new() };
    let piece = FilePiece { file, start: 0, len: paths.len(), held: Location::Memory(data) };
    let values = Values::Pieces(vec![piece]);
    Ok((Column { described, shape: Vec::new(), first: 0, step: 1, values }, paths.len()))
}

fn paths(patterns: &[FileRef], described: &InputInfo) -> Checked<Vec<PathBuf>> {
    let files = pattern::files_of(patterns).map_err(|(file, why)| described.unreadable(file, &why))?;
    Ok(files.into_iter().map(|f| f.1).collect())
}
