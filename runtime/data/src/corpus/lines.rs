//! Lines of a text file, gzipped or not: UTF-8, without their ends. A long one comes in parts.

use super::failed;
use crate::Bytes;
use crate::readers::table_fault::encoding;
use meshwright_files::Checked;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// About how many bytes of a line are read at a time.
const AT_A_TIME: u64 = 1 << 18;

/// Longer lines are no objects: a damaged file, or one of another format.
const LONGEST: usize = 1 << 30;

/// A part of a line.
pub(super) struct LinePart {
    pub(super) text: String,
    pub(super) begins: bool,
    pub(super) ends: bool,
}

/// The lines of a file.
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<Bytes>,
    /// The line that was read last, from 1; whether there is more of it, and how many bytes of it were given.
    number: u64,
    within: bool,
    given: usize,
    /// Bytes that mean nothing without the next ones: a part of a character, or a carriage return.
    left: Vec<u8>,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Checked<Lines> {
        let bytes = Bytes::stream(path).map_err(|why| failed(path, why))?;
        let reader = BufReader::with_capacity(1 << 16, bytes);
        Ok(Lines { path: path.to_path_buf(), reader, number: 0, within: false, given: 0, left: Vec::new() })
    }

    /// The number of the line that was read last.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line; `None` at the end of the file.
    pub(super) fn whole(&mut self) -> Checked<Option<String>> {
        let mut line: Option<String> = None;
        while let Some(part) = self.part()? {
            let line = line.get_or_insert_default();
            line.push_str(&part.text);
            if line.len() >= LONGEST {
                return Err(failed(
                    &self.path,
                    format!("line {} has more than {LONGEST} bytes", self.number),
                ));
            }
            if part.ends {
                break;
            }
        }
        Ok(line)
    }

    /// The next part of a line; `None` at the end of the file.
    pub(super) fn part(&mut self) -> Checked<Option<LinePart>> {
        let begins = !self.within;
        let mut bytes = std::mem::take(&mut self.left);
        let read = (&mut self.reader).take(AT_A_TIME).read_until(b'\n', &mut bytes);
        let read = read.map_err(|e| {
            failed(&self.path, format!("after line {}: {e}", self.number - u64::from(self.within)))
        })?;
        if begins && bytes.is_empty() {
            return Ok(None);
        }
        if begins {
            (self.number, self.given) = (self.number + 1, 0);
        }
        let ends = read == 0 || bytes.ends_with(b"\n");
        bytes.pop_if(|b| *b == b'\n');
        match ends {
            true => drop(bytes.pop_if(|b| *b == b'\r')),
            false if bytes.ends_with(b"\r") => self.left = bytes.split_off(bytes.len() - 1),
            false => {}
        }
        if self.number == 1 && begins && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            // The last character goes on.
            Err(e) if !ends && e.utf8_error().error_len().is_none() => {
                let (valid, mut bytes) = (e.utf8_error().valid_up_to(), e.into_bytes());
                self.left.splice(..0, bytes.split_off(valid));
                String::from_utf8(bytes).unwrap_or_default()
            }
            Err(e) => {
                let at = self.given + e.utf8_error().valid_up_to();
                let why = format!("line {} is not UTF-8 from its byte {at} on", self.number);
                let from = encoding(if self.number == 1 && begins { e.as_bytes() } else { &[] });
                let help = format!("convert it: `iconv -f {from} -t UTF-8`");
                return Err((*failed(&self.path, why)).help(help).into());
            }
        };
        self.given += text.len();
        self.within = !ends;
        Ok(Some(LinePart { text, begins, ends }))
    }
}
