//! Bytes of a data file, plain, gzipped or in memory, with a bound on what it can possibly hold, so that a header that lies is
//! found before memory is asked for. A file whose elements wait to be read is closed until then: a process may open a thousand.

use flate2::CrcReader;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder};
use meshwright_files::text_file::open_text;
use meshwright_files::try_reserve;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub(crate) struct Bytes {
    inner: Inner,
    /// Most bytes that may still come.
    left: u64,
    /// Bytes that came; where they come from a plain file, from its start.
    at: u64,
    file: PathBuf,
}

enum Inner {
    Plain(BufReader<File>),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    Zipped(Box<Zipped>, Packed),
    Memory(Cursor<Vec<u8>>),
}

type Zipped = CrcReader<DeflateDecoder<std::io::Take<BufReader<File>>>>;

/// A member of a zip file.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    /// Offset and number of its packed bytes.
    pub(crate) part: (u64, u64),
    /// Number of unpacked bytes.
    pub(crate) size: u64,
    /// The checksum of these.
    pub(super) crc: u32,
}

/// Deflate makes at most 1,032 bytes of one.
const MAX_RATIO: u64 = 1032;

/// Limit of unpacked memory, as a multiple of the file's size or in bytes, so that a small file does not take all
/// memory.
const MOST_UNPACKED: (u64, u64) = (100, 64 << 20);

fn unpacked_at_most(packed: u64) -> u64 {
    packed.saturating_mul(MOST_UNPACKED.0).max(MOST_UNPACKED.1).min(packed.saturating_mul(MAX_RATIO))
}

impl Bytes {
    /// Opens a file that is read into memory.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        Self::opened(path, unpacked_at_most)
    }

    /// Opens a file of which only a part is in memory at a time.
    pub(crate) fn stream(path: &Path) -> Result<Self, String> {
        Self::opened(path, |packed| packed.saturating_mul(MAX_RATIO))
    }

    /// Reads a file that is open into memory.
    pub(crate) fn of_file(file: File, path: &Path) -> Result<Self, String> {
        let len = file.metadata().map_err(|e| e.to_string())?.len();
        Self::unpacked(BufReader::with_capacity(1 << 16, file), len, path, unpacked_at_most)
    }

    fn opened(path: &Path, unpacked: impl Fn(u64) -> u64) -> Result<Self, String> {
        let (file, len) = regular(path)?;
        Self::unpacked(file, len, path, unpacked)
    }

    fn unpacked(
        mut file: BufReader<File>,
        len: u64,
        path: &Path,
        unpacked: impl Fn(u64) -> u64,
    ) -> Result<Self, String> {
        let gzip = file.fill_buf().map_err(|e| e.to_string())?.starts_with(&[0x1f, 0x8b]);
        let (inner, left) = match gzip {
            true => (Inner::Gzip(Box::new(MultiGzDecoder::new(file))), unpacked(len)),
            false => (Inner::Plain(file), len),
        };
        Ok(Bytes { inner, left, at: 0, file: path.to_path_buf() })
    }

    /// The `len` bytes from `at` on of a file that is not compressed.
    pub(crate) fn part(path: &Path, at: u64, len: u64) -> Result<Self, String> {
        let (mut file, whole) = regular(path)?;
        if at.checked_add(len).is_none_or(|end| end > whole) {
            return Err(format!("it is truncated: {len} bytes should start at {at}, the file has {whole}"));
        }
        file.seek(SeekFrom::Start(at)).map_err(|e| e.to_string())?;
        Ok(Bytes { inner: Inner::Plain(file), left: len, at, file: path.to_path_buf() })
    }

    /// The bytes of a zip file's member that is packed by deflate.
    pub(super) fn deflated(path: &Path, packed: Packed) -> Result<Self, String> {
        let Packed { part: (at, len), size, .. } = packed;
        if size > len.saturating_mul(MAX_RATIO) {
            return Err(format!("{len} packed bytes cannot hold the {size} that they should"));
        }
        if size > unpacked_at_most(len) {
            return Err(format!("{len} packed bytes should make {size}: {UNPACK}"));
        }
        let Bytes { inner: Inner::Plain(file), .. } = Self::part(path, at, len)? else {
            return Err("it cannot be read by position".into());
        };
        let unpacked = CrcReader::new(DeflateDecoder::new(file.take(len)));
        let inner = Inner::Zipped(Box::new(unpacked), packed);
        Ok(Bytes { inner, left: size, at: 0, file: path.to_path_buf() })
    }

    /// Bytes that were read before.
    pub(crate) fn memory(bytes: Vec<u8>) -> Self {
        let left = bytes.len() as u64;
        Bytes { inner: Inner::Memory(Cursor::new(bytes)), left, at: 0, file: PathBuf::new() }
    }

    fn reader(&mut self) -> &mut dyn Read {
        match &mut self.inner {
            Inner::Plain(r) => r,
            Inner::Gzip(r) => r,
            Inner::Zipped(r, _) => r,
            Inner::Memory(r) => r,
        }
    }

    /// An error where `n` more bytes, named `what`, cannot come.
    fn expect(&self, n: u64, what: &str) -> Result<(), String> {
        let left = self.left;
        match self.inner {
            _ if n <= left => Ok(()),
            Inner::Plain(_) | Inner::Zipped(..) | Inner::Memory(_) => {
                Err(format!("it is truncated: {what} should take {n} bytes, {left} are left"))
            }
            Inner::Gzip(_) => Err(format!(
                "{what} should take {n} bytes, but of a compressed file of its size at most {left} are read: {UNPACK}"
            )),
        }
    }

    /// The next `n` bytes, named `what` in errors.
    pub(crate) fn take(&mut self, n: usize, what: &str) -> Result<Vec<u8>, String> {
        self.expect(n as u64, what)?;
        let mut out = Vec::new();
        try_reserve(&mut out, n.min(1 << 26))
            .map_err(|_| format!("{what} takes {n} bytes, more than memory has"))?;
        let got = self.reader().take(n as u64).read_to_end(&mut out).map_err(|e| e.to_string())?;
        if got != n {
            return Err(format!("it is truncated: {what} should take {n} bytes, {got} are left"));
        }
        self.left -= n as u64;
        self.at += n as u64;
        Ok(out)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        self.take(N, what).map(|b| meshwright_files::tensor::array(&b))
    }

    /// Leaves out the next `n` bytes, which a plain file need not read.
    fn skip(&mut self, n: u64, what: &str) -> Result<(), String> {
        self.expect(n, what)?;
        let skipped = match &mut self.inner {
            Inner::Plain(file) => i64::try_from(n)
                .map_err(std::io::Error::other)
                .and_then(|n| file.seek_relative(n))
                .map(|()| n),
            _ => std::io::copy(&mut self.reader().take(n), &mut std::io::sink()),
        };
        match skipped.map_err(|e| e.to_string())? {
            got if got == n => {}
            got => return Err(format!("it is truncated: {what} should take {n} bytes, {got} are left")),
        }
        self.left -= n;
        self.at += n;
        Ok(())
    }

    /// The elements of a tensor: `size` bytes after `before` others, and with `after` others to follow. That a plain file has
    /// exactly these is checked here. The file is closed.
    pub(crate) fn elements(
        mut self,
        (before, size, after): (u64, usize, u64),
        what: &str,
    ) -> Result<Elements, String> {
        self.expect(before, "what lies before its elements")?;
        self.left -= before;
        self.expect(size as u64, what)?;
        let rest = self.left - size as u64;
        match self.inner {
            Inner::Gzip(_) => {}
            _ if rest < after => {
                return Err(format!("it is truncated: its tensors take {} bytes more", after - rest));
            }
            _ if rest > after => return Err(GOES_ON.into()),
            _ => {}
        }
        let at = self.at + before;
        let source = match self.inner {
            Inner::Memory(mut bytes) => {
                bytes.set_position(at);
                ElementSource::Memory(bytes)
            }
            Inner::Plain(_) => ElementSource::Plain(self.file),
            Inner::Gzip(_) => ElementSource::Gzip(self.file),
            Inner::Zipped(_, packed) => ElementSource::Zipped(self.file, packed),
        };
        Ok(Elements { source, at, size, after, what: what.into() })
    }
}

/// Whatever is left, up to the bound.
impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let left = self.left;
        if left == 0 && !out.is_empty() && matches!(self.inner, Inner::Gzip(_)) {
            return match self.reader().read(&mut [0; 1])? {
                0 => Ok(0),
                _ => Err(std::io::Error::other(format!(
                    "it goes on after {} unpacked bytes: {UNPACK}",
                    self.at
                ))),
            };
        }
        let n = self.reader().take(left).read(out)?;
        self.left -= n as u64;
        self.at += n as u64;
        Ok(n)
    }
}

const GOES_ON: &str = "it goes on after the last element that its header promises";

/// Remedy for a compressed file that becomes too large.
const UNPACK: &str = "unpack it, and name the file that comes of it";

fn regular(path: &Path) -> Result<(BufReader<File>, u64), String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".into());
    }
    let file = open_text(path).map_err(|e| e.to_string())?;
    Ok((BufReader::with_capacity(1 << 16, file), meta.len()))
}

/// The bytes of a tensor's elements, none of which has been read yet.
pub(crate) struct Elements {
    source: ElementSource,
    /// Offset of the first; in a compressed file, of the unpacked bytes.
    at: u64,
    size: usize,
    /// Bytes that follow in the file.
    after: u64,
    what: String,
}

enum ElementSource {
    Memory(Cursor<Vec<u8>>),
    Plain(PathBuf),
    Gzip(PathBuf),
    Zipped(PathBuf, Packed),
}

impl Elements {
    /// Bytes that they take.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Offset in a file that holds them without conversion.
    pub(crate) fn place(&self) -> Option<u64> {
        matches!(self.source, ElementSource::Plain(_)).then_some(self.at)
    }

    /// Opens the file again, where they begin.
    fn bytes(&mut self) -> Result<Bytes, String> {
        let before = "what lies before its elements";
        let mut bytes = match &mut self.source {
            ElementSource::Memory(bytes) => {
                let (inner, left) = (Inner::Memory(std::mem::take(bytes)), self.size as u64);
                return Ok(Bytes { inner, left, at: self.at, file: PathBuf::new() });
            }
            ElementSource::Plain(path) => return Bytes::part(path, self.at, self.size as u64),
            ElementSource::Gzip(path) => Bytes::open(path)?,
            ElementSource::Zipped(path, packed) => Bytes::deflated(path, *packed)?,
        };
        bytes.skip(self.at, before)?;
        Ok(bytes)
    }

    /// Hands out all of them, in pieces of a multiple of 8 bytes but for the last.
    pub(crate) fn each(mut self, mut f: impl FnMut(&[u8]) -> Result<(), ReadError>) -> Result<(), ReadError> {
        let mut bytes = self.bytes().map_err(ReadError::Unreadable)?;
        let mut left = self.size;
        let mut piece = vec![0; left.min(1 << 20)];
        while left > 0 {
            let n = left.min(piece.len());
            let (to, what) = (&mut piece[..n], &self.what);
            let mut got = 0;
            while got < n {
                match bytes.read(&mut to[got..]) {
                    Ok(0) => {
                        let (n, got) = (self.size, self.size - left + got);
                        let why = format!("it is truncated: {what} should take {n} bytes, {got} are left");
                        return Err(ReadError::Unreadable(why));
                    }
                    Ok(k) => got += k,
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(ReadError::Unreadable(e.to_string())),
                }
            }
            f(to)?;
            left -= n;
        }
        ends(bytes, self.after).map_err(ReadError::Unreadable)
    }
}

/// An error where a file goes on for more than `after` bytes, or has another checksum than it says.
fn ends(mut bytes: Bytes, after: u64) -> Result<(), String> {
    match &mut bytes.inner {
        Inner::Plain(_) | Inner::Memory(_) => return Ok(()),
        Inner::Gzip(_) => {}
        Inner::Zipped(r, packed) => {
            let more = r.read(&mut [0; 1]).map_err(|e| e.to_string())?;
            return match (more, r.crc().sum() == packed.crc) {
                (0, true) => Ok(()),
                (0, false) => Err("it is damaged: its checksum is another one".into()),
                _ => Err(GOES_ON.into()),
            };
        }
    }
    bytes.skip(after, "its other tensors")?;
    match bytes.reader().read(&mut [0; 1]).map_err(|e| e.to_string())? {
        0 => Ok(()),
        _ => Err(GOES_ON.into()),
    }
}

/// Why reading elements ended early.
pub(crate) enum ReadError {
    /// The file cannot be read on.
    Unreadable(String),
    /// Its user has said why.
    Said(Box<meshwright_diag::Diagnostic>),
}
