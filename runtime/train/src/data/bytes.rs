//! Bytes of a data file, plain or gzipped, with a bound on what it can possibly hold, so that a header that lies is found
//! before memory is asked for.

use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

pub(super) struct Bytes {
    inner: Inner,
    /// Most bytes that may still come.
    left: u64,
}

enum Inner {
    Plain(BufReader<File>),
    Gzip(Box<MultiGzDecoder<BufReader<File>>>),
}

/// Deflate makes at most 1,032 bytes of one.
const MAX_RATIO: u64 = 1032;

impl Bytes {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
        if !meta.is_file() {
            return Err("it is not a file".into());
        }
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(|e| e.to_string())?);
        let gzip = file.fill_buf().map_err(|e| e.to_string())?.starts_with(&[0x1f, 0x8b]);
        Ok(if gzip {
            let left = meta.len().saturating_mul(MAX_RATIO);
            Bytes { inner: Inner::Gzip(Box::new(MultiGzDecoder::new(file))), left }
        } else {
            Bytes { inner: Inner::Plain(file), left: meta.len() }
        })
    }

    fn reader(&mut self) -> &mut dyn Read {
        match &mut self.inner {
            Inner::Plain(r) => r,
            Inner::Gzip(r) => r,
        }
    }

    /// The next `n` bytes, named `what` in errors.
    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<Vec<u8>, String> {
        if n as u64 > self.left {
            let left = self.left;
            return Err(match self.inner {
                Inner::Plain(_) => format!("it is truncated: {what} should take {n} bytes, {left} are left"),
                Inner::Gzip(_) => {
                    format!(
                        "{what} should take {n} bytes, but a compressed file of its size holds at most {left}"
                    )
                }
            });
        }
        let mut out = Vec::new();
        out.try_reserve_exact(n.min(1 << 26))
            .map_err(|_| format!("{what} takes {n} bytes, more than memory has"))?;
        let got = self.reader().take(n as u64).read_to_end(&mut out).map_err(|e| e.to_string())?;
        if got != n {
            return Err(format!("it is truncated: {what} should take {n} bytes, {got} are left"));
        }
        self.left -= n as u64;
        Ok(out)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        self.take(N, what).map(|b| crate::tensor::array(&b))
    }

    /// Everything that is left.
    pub(super) fn rest(mut self) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let left = self.left;
        self.reader().take(left).read_to_end(&mut out).map_err(|e| e.to_string())?;
        Ok(out)
    }

    /// An error where the file goes on. For gzip this also reads its checksum.
    pub(super) fn end(mut self) -> Result<(), String> {
        let mut extra = [0; 1];
        match self.reader().read(&mut extra).map_err(|e| e.to_string())? {
            0 => Ok(()),
            _ => Err("it goes on after the last element that its header promises".into()),
        }
    }
}
