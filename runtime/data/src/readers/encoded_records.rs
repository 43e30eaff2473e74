//! Records that lie encoded in files, one member of a file for each: an image, an array, or numbers as text.

use super::array::TensorFile;
use super::bytes::{Bytes, ReadError};
use super::image::{self, Failed};
use super::{csv_table, formats, signed};
use crate::dataset::convert::Conversion;
use crate::dataset::input_info::InputInfo;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::DType;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// All records of an input.
#[derive(Debug)]
pub(crate) struct Encoded {
    files: Vec<(PathBuf, Option<File>)>,
    members: Vec<Member>,
    finite: bool,
}

/// Location of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// Index of the file.
    pub(crate) file: u32,
    /// First byte.
    pub(crate) at: u64,
    /// Length in bytes.
    pub(crate) size: u32,
}

/// Most files of an input that stay open.
const KEPT_OPEN: usize = 64;

/// The largest member: what an image or a small array takes, and no more.
pub(crate) const MOST_BYTES: u64 = 1 << 30;

impl Encoded {
    pub(crate) fn new(paths: Vec<PathBuf>, members: Vec<Member>, finite: bool) -> Encoded {
        let few = paths.len() <= KEPT_OPEN;
        let open = |path: PathBuf| {
            let file = if few { File::open(&path).ok() } else { None };
            (path, file)
        };
        Encoded { files: paths.into_iter().map(open).collect(), members, finite }
    }

    /// The first file, and how many there are.
    pub(crate) fn named(&self) -> String {
        let first = self.files.first().map_or("no files".into(), |f| format!("`{}`", f.0.display()));
        match self.files.len() {
            0 | 1 => first,
            n => format!("{first} and {} more files", n - 1),
        }
    }

    /// The first record of each file.
    pub(crate) fn first_records(&self) -> Vec<usize> {
        let starts = |i: &usize| *i == 0 || self.members[*i].file != self.members[*i - 1].file;
        (0..self.members.len()).filter(starts).collect()
    }

    /// Checks that the first record has the declared sizes. Damaged records are found when they are read.
    ///
    /// # Errors
    /// E0504 or E0505 where it has others.
    pub(crate) fn fits(&self, described: &InputInfo, shape: &[usize]) -> Checked<()> {
        if self.members.is_empty() {
            return Ok(());
        }
        match self.read(0, described, shape, (&mut Vec::new(), &mut Vec::new())) {
            Err(d) if ["E0504", "E0505"].contains(&d.code.id) => Err(d),
            _ => Ok(()),
        }
    }

    /// Decodes a whole record into elements of the program. Its sizes are checked before memory is allocated.
    pub(crate) fn read(
        &self,
        record: usize,
        described: &InputInfo,
        shape: &[usize],
        (raw, out): (&mut Vec<u8>, &mut Vec<u8>),
    ) -> Checked<()> {
        let member = self.members[record];
        let (path, file) = &self.files[member.file as usize];
        raw.resize(member.size as usize, 0);
        let read = match file {
            Some(file) => file.read_exact_at(raw, member.at),
            None => File::open(path).and_then(|f| f.read_exact_at(raw, member.at)),
        };
        let place = || match self.files.len() == self.members.len() {
            true => format!("`{}`", path.display()),
            false => format!("`{}` at byte {}", path.display(), member.at),
        };
        let damaged = |why: String| {
            let message =
                format!("{} cannot be read as record {record} of `{}`: {why}", place(), described.name);
            Box::new(Diagnostic::error(codes::E0502, message).help(SKIP))
        };
        read.map_err(|e| damaged(e.to_string()))?;
        if image::is_image(raw) {
            return self.image(raw, described, shape, out, (&place, &damaged));
        }
        self.numbers(raw, described, shape, (record, out, &place)).map_err(|stop| match stop {
            ReadError::Unreadable(why) => damaged(why),
            ReadError::Said(d) => d,
        })
    }

    fn image(
        &self,
        raw: &[u8],
        described: &InputInfo,
        shape: &[usize],
        out: &mut Vec<u8>,
        (place, damaged): (&dyn Fn() -> String, &dyn Fn(String) -> Box<Diagnostic>),
    ) -> Checked<()> {
        let name = &described.name;
        if described.dtype != DType::U8 {
            let message =
                format!("input `{name}` is declared as `{}`, but {} is an image", described.dtype, place());
            let help = format!("declare it as `u8` and write `cast({name}, float)` where it is used");
            return Err(Box::new(Diagnostic::error(codes::E0505, message).help(help)));
        }
        let sizes = match *shape {
            [rows, cols] => [rows, cols, 1],
            [rows, cols, channels] => [rows, cols, channels],
            _ => [0; 3],
        };
        image::decode(raw, sizes, out).map_err(|e| match e {
            Failed::Damaged(why) => damaged(why),
            Failed::Sizes(has) => {
                let message = format!(
                    "`{name}` is declared as {shape:?} for each example, but {} is an image of {} rows, {} columns and {} channels",
                    place(), has[0], has[1], has[2]
                );
                let help = "declare rows, columns and channels (1, 3 or 4), in this order; all images of an input have the same sizes";
                Box::new(Diagnostic::error(codes::E0504, message).help(help))
            }
        })
    }

    /// An array of NumPy's, or numbers between blanks and commas.
    fn numbers(
        &self,
        raw: &[u8],
        described: &InputInfo,
        shape: &[usize],
        (record, out, place): (usize, &mut Vec<u8>, &dyn Fn() -> String),
    ) -> Result<(), ReadError> {
        let unreadable = ReadError::Unreadable;
        let TensorFile { header, elements } = match raw.starts_with(b"\x93NUMPY") {
            true => {
                signed::open(Bytes::memory(raw.to_vec())).and_then(formats::row_major).map_err(unreadable)?
            }
            false => csv_table::numbers(raw, described.dtype).map_err(unreadable)?,
        };
        let wanted = shape.iter().try_fold(1, |all: usize, n| all.checked_mul(*n));
        let width = header.elem.bytes();
        if Some(elements.size() / width) != wanted {
            let message = format!(
                "`{}` is declared as {shape:?} for each example, but {} has {} values",
                described.name,
                place(),
                elements.size() / width
            );
            return Err(ReadError::Said(Box::new(Diagnostic::error(codes::E0504, message))));
        }
        let below = described.range.as_ref().map(|r| r.1);
        let from = (header.elem, header.big_endian);
        let conversion = Conversion::new(from, described.dtype, below, self.finite).ok_or_else(|| {
            let has = header.elem.name();
            let message = format!(
                "input `{}` is declared as `{}`, but {} holds `{has}`",
                described.name,
                described.dtype,
                place()
            );
            ReadError::Said(Box::new(Diagnostic::error(codes::E0505, message)))
        })?;
        out.resize(elements.size() / width * described.dtype.bytes(), 0);
        let mut done = 0;
        elements.each(|piece| {
            let n = piece.len() / width * described.dtype.bytes();
            conversion
                .run(piece, &mut out[done..done + n])
                .map_err(|(_, bad)| ReadError::Said(described.bad_member(bad, record, &place())))?;
            done += n;
            Ok(())
        })
    }
}

/// What one may do about a damaged member.
pub(super) const SKIP: &str = "mend or remove it, or leave damaged examples out: `damaged = \"skip\"` in the set's table of `data.toml`";
