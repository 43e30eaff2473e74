//! Bytes of a data file, plain, gzipped or in memory, with a bound on what it can possibly hold, so that a header that lies is
//! found before memory is asked for.

use flate2::CrcReader;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder};
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

pub(crate) struct Bytes {
    inner: Inner,
    /// Most bytes that may still come.
    left: u64,
    /// Bytes that came, where they come from a plain file: from its start.
    at: u64,
}

enum Inner {
    Plain(BufReader<File>),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
    /// Of a zip file, with the checksum that it promises.
    Zipped(Box<Zipped>, u32),
    Memory(Cursor<Vec<u8>>),
}

type Zipped = CrcReader<DeflateDecoder<std::io::Take<BufReader<File>>>>;

/// Deflate makes at most 1,032 bytes of one.
const MAX_RATIO: u64 = 1032;

impl Bytes {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let (mut file, len) = regular(path)?;
        let gzip = file.fill_buf().map_err(|e| e.to_string())?.starts_with(&[0x1f, 0x8b]);
        Ok(if gzip {
            let left = len.saturating_mul(MAX_RATIO);
            Bytes { inner: Inner::Gzip(Box::new(MultiGzDecoder::new(file))), left, at: 0 }
        } else {
            Bytes { inner: Inner::Plain(file), left: len, at: 0 }
        })
    }

    /// The `len` bytes from `at` on of a file that is not compressed.
    pub(super) fn part(path: &Path, at: u64, len: u64) -> Result<Self, String> {
        let (mut file, whole) = regular(path)?;
        if at.checked_add(len).is_none_or(|end| end > whole) {
            return Err(format!("it is truncated: {len} bytes should start at {at}, the file has {whole}"));
        }
        file.seek(SeekFrom::Start(at)).map_err(|e| e.to_string())?;
        Ok(Bytes { inner: Inner::Plain(file), left: len, at })
    }

    /// The `size` bytes with the checksum `crc` that are packed by deflate in the part (`at`, `len`) of a file.
    pub(super) fn deflated(path: &Path, (at, len): (u64, u64), size: u64, crc: u32) -> Result<Self, String> {
        if size > len.saturating_mul(MAX_RATIO) {
            return Err(format!("{len} packed bytes cannot hold the {size} that they should"));
        }
        let Bytes { inner: Inner::Plain(file), .. } = Self::part(path, at, len)? else {
            return Err("it cannot be read by position".into());
        };
        let unpacked = CrcReader::new(DeflateDecoder::new(file.take(len)));
        Ok(Bytes { inner: Inner::Zipped(Box::new(unpacked), crc), left: size, at: 0 })
    }

    /// Bytes that were read before.
    pub(super) fn memory(bytes: Vec<u8>) -> Self {
        let left = bytes.len() as u64;
        Bytes { inner: Inner::Memory(Cursor::new(bytes)), left, at: 0 }
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
                "{what} should take {n} bytes, but a compressed file of its size holds at most {left}"
            )),
        }
    }

    /// The next `n` bytes, named `what` in errors.
    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<Vec<u8>, String> {
        self.expect(n as u64, what)?;
        let mut out = Vec::new();
        out.try_reserve_exact(n.min(1 << 26))
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
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        self.take(N, what).map(|b| crate::tensor::array(&b))
    }

    /// Leaves out the next `n` bytes; those of a plain file are not read.
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
    /// exactly these is checked here.
    pub(super) fn elements(
        mut self,
        (before, size, after): (u64, usize, u64),
        what: &str,
    ) -> Result<Elements, String> {
        self.skip(before, "what lies before its elements")?;
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
        Ok(Elements { bytes: self, size, after, what: what.into() })
    }
}

/// Whatever is left, up to the bound.
impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let left = self.left;
        let n = self.reader().take(left).read(out)?;
        self.left -= n as u64;
        self.at += n as u64;
        Ok(n)
    }
}

const GOES_ON: &str = "it goes on after the last element that its header promises";

fn regular(path: &Path) -> Result<(BufReader<File>, u64), String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".into());
    }
    let file = File::open(path).map_err(|e| e.to_string())?;
    Ok((BufReader::with_capacity(1 << 16, file), meta.len()))
}

/// The bytes of a tensor's elements, none of which has been read yet.
pub(super) struct Elements {
    bytes: Bytes,
    size: usize,
    /// Bytes that follow in the file.
    after: u64,
    what: String,
}

impl Elements {
    /// Bytes that they take.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Where they start in a file that holds them as they are.
    pub(super) fn place(&self) -> Option<u64> {
        match self.bytes.inner {
            Inner::Plain(_) => Some(self.bytes.at),
            _ => None,
        }
    }

    /// Hands out all of them, in pieces of a multiple of 8 bytes but for the last.
    pub(super) fn each(mut self, mut f: impl FnMut(&[u8]) -> Result<(), ReadError>) -> Result<(), ReadError> {
        let mut left = self.size;
        let mut piece = vec![0; left.min(1 << 20)];
        while left > 0 {
            let n = left.min(piece.len());
            let (to, what) = (&mut piece[..n], &self.what);
            let mut got = 0;
            while got < n {
                match self.bytes.read(&mut to[got..]) {
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
        self.end().map_err(ReadError::Unreadable)
    }

    /// An error where the file goes on, or has another checksum than it says.
    fn end(mut self) -> Result<(), String> {
        match &mut self.bytes.inner {
            Inner::Plain(_) | Inner::Memory(_) => return Ok(()),
            Inner::Gzip(_) => {}
            Inner::Zipped(r, crc) => {
                let more = r.read(&mut [0; 1]).map_err(|e| e.to_string())?;
                return match (more, r.crc().sum() == *crc) {
                    (0, true) => Ok(()),
                    (0, false) => Err("it is damaged: its checksum is another one".into()),
                    _ => Err(GOES_ON.into()),
                };
            }
        }
        self.bytes.skip(self.after, "its other tensors")?;
        let mut extra = [0; 1];
        match self.bytes.reader().read(&mut extra).map_err(|e| e.to_string())? {
            0 => Ok(()),
            _ => Err(GOES_ON.into()),
        }
    }
}

/// Why reading elements ended early.
pub(super) enum ReadError {
    /// The file cannot be read on.
    Unreadable(String),
    /// Its user has said why.
    Said(Box<meshwright_diag::Diagnostic>),
}
