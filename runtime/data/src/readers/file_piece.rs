//! The elements of files, one after the other: in memory where they are small, and in place where they are not.

use super::array::{Elem, Header, TensorFile};
use super::bytes::ReadError;
use super::formats;
use crate::dataset::binding::InputBinding;
use crate::dataset::convert::{BadValue, Conversion};
use crate::dataset::input_info::InputInfo;
use crate::source::FileRef;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::try_reserve;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of an input's files up to which they are read whole before the first step: all their values are then known to
/// be good, and no step waits for them.
const IN_MEMORY: usize = 64 << 20;

/// Most files of an input that stay open.
const KEPT_OPEN: usize = 64;

/// The elements of one file.
#[derive(Debug)]
pub(crate) struct FilePiece {
    pub(crate) file: FileRef,
    /// The first of them, counted over all files.
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) held: Location,
}

#[derive(Debug)]
pub(crate) enum Location {
    /// Elements of the program, all of which are good.
    Memory(Vec<u8>),
    /// Elements of the file, from this byte on. They are read by position and not mapped: a file that becomes shorter is an
    /// error and not the end of the process, and what was read does not count as this process's memory.
    InPlace { open: Option<File>, at: u64, conversion: Conversion },
}

/// The elements of all files, one after the other: in memory, or where they are.
pub(crate) fn hold(
    opened: Vec<(FileRef, TensorFile)>,
    per_record: usize,
    described: &InputInfo,
    binding: &InputBinding,
) -> Checked<Vec<FilePiece>> {
    let bytes: usize = opened.iter().map(|(_, o)| o.elements.size()).sum();
    let (files, mut start) = (opened.len(), 0);
    let mut out = Vec::new();
    for (file, opened) in opened {
        let Header { elem, big_endian, .. } = opened.header;
        let below = described.range.as_ref().map(|r| r.1);
        let from = (elem, big_endian);
        let conversion = match described.ignored {
            None => Conversion::new(from, described.dtype, below, !binding.allow_nonfinite),
            Some(ignored) => Conversion::ignoring(from, described.dtype, below, ignored),
        };
        let conversion = conversion.ok_or_else(|| wrong_dtype(elem, described, &file))?;
        let opened = formats::row_major(opened).map_err(|why| described.unreadable(&file, &why))?;
        let len = opened.elements.size() / elem.bytes();
        let held = match opened.elements.place() {
            Some(at) if bytes > IN_MEMORY => {
                let open = File::open(&file.path)
                    .map_err(|e| described.unreadable(&file, &e.to_string()))
                    .map(|f| (files <= KEPT_OPEN).then_some(f))?;
                Location::InPlace { open, at, conversion }
            }
            _ => Location::Memory(read(opened, conversion, per_record, described, &file)?),
        };
        if len > 0 {
            out.push(FilePiece { file, start, len, held });
            start += len;
        }
    }
    Ok(out)
}

/// All elements of a file, converted and checked.
fn read(
    opened: TensorFile,
    conversion: Conversion,
    per_record: usize,
    described: &InputInfo,
    file: &FileRef,
) -> Checked<Vec<u8>> {
    let width = described.dtype.bytes();
    let n = opened.elements.size() / conversion.width();
    let mut out: Vec<u8> = Vec::new();
    // A compressed file may promise more bytes than it has, but no more than is reasonable.
    try_reserve(&mut out, n.saturating_mul(width)).map_err(|_| {
        described.unreadable(file, &format!("it takes {n} elements of {width} bytes, more than memory has"))
    })?;
    let mut bad: Option<(usize, BadValue)> = None;
    let mut more = 0;
    let (mut done, record) = (0, per_record.max(1));
    let read = opened.elements.each(|piece| {
        let n = piece.len() / conversion.width();
        let start = out.len();
        if bad.is_none() {
            out.resize(start + n * width, 0);
            bad = conversion.run(piece, &mut out[start..]).err().map(|(at, b)| (done + at, b));
        }
        if let Some((at, first)) = bad {
            if !matches!(first, BadValue::Outside(_)) {
                return Err(ReadError::Said(described.bad_value(first, at / record, file, 0)));
            }
            // Number of further positions outside.
            let mut to = [0; 8];
            let rest = piece.chunks_exact(conversion.width()).enumerate().filter(|(i, _)| done + i > at);
            let outside =
                |b: &[u8]| matches!(conversion.run(b, &mut to[..width]), Err((_, BadValue::Outside(_))));
            more += rest.map(|(_, b)| b).map(outside).filter(|b| *b).count();
        }
        done += n;
        Ok(())
    });
    match (read, bad) {
        (Err(ReadError::Unreadable(why)), _) => Err(described.unreadable(file, &why)),
        (Err(ReadError::Said(d)), _) => Err(d),
        (Ok(()), Some((at, first))) => Err(described.bad_value(first, at / record, file, more)),
        (Ok(()), None) => Ok(out),
    }
}

fn wrong_dtype(elem: Elem, described: &InputInfo, file: &FileRef) -> Box<Diagnostic> {
    let (name, dtype) = (&described.name, described.dtype);
    let message = format!("input `{name}` is declared as `{dtype}`, but `{file}` holds `{}`", elem.name());
    let error = Diagnostic::error(codes::E0505, message);
    let as_declared = match elem {
        Elem::U8 => "u8",
        Elem::Bool => "bool",
        _ if elem.is_float() => "float",
        _ => "i32",
    };
    // What counts positions of a dim is an integer, whatever the file has.
    if described.range.is_some() && as_declared != "i32" {
        return Box::new(error.help(format!("store it as integers: `{name}` counts positions")));
    }
    Box::new(match dtype.is_float() {
        true => error
            .help(format!("declare it as `{as_declared}` and write `cast({name}, float)` where it is used")),
        false => error.help(format!("declare it as `{as_declared}`")),
    })
}

/// Fills `out` with the elements of an input from `start` on, over as many files as it takes; an error is one of `record`.
pub(crate) fn read_span(
    pieces: &[FilePiece],
    described: &InputInfo,
    (record, mut start): (usize, usize),
    mut out: &mut [u8],
    raw: &mut Vec<u8>,
) -> Checked<()> {
    let width = described.dtype.bytes();
    let mut at = pieces.partition_point(|p| p.start + p.len <= start);
    while !out.is_empty() {
        let piece = &pieces[at];
        let from = start - piece.start;
        let n = (piece.len - from).min(out.len() / width);
        let (to, rest) = out.split_at_mut(n * width);
        match &piece.held {
            Location::Memory(data) => to.copy_from_slice(&data[from * width..(from + n) * width]),
            Location::InPlace { open, at, conversion } => {
                raw.resize(n * conversion.width(), 0);
                let offset = at + (from * conversion.width()) as u64;
                piece.read(open.as_ref(), offset, raw).map_err(|e| {
                    let why = format!("its {} bytes from {offset} on: {e}", raw.len());
                    described.unreadable(&piece.file, &why)
                })?;
                conversion
                    .run(raw, to)
                    .map_err(|(_, bad)| described.bad_value(bad, record, &piece.file, 0))?;
            }
        }
        (out, start, at) = (rest, start + n, at + 1);
    }
    Ok(())
}

impl FilePiece {
    /// Reads bytes of the file from `at` on.
    fn read(&self, open: Option<&File>, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        match open {
            Some(file) => file.read_exact_at(out, at),
            None => File::open(&self.file.path)?.read_exact_at(out, at),
        }
    }
}
