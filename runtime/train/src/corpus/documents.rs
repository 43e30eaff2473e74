//! Documents of text files, one after the other: plain text or JSON lines, gzipped or not.

use super::{failed, refused};
use crate::Checked;
use crate::data::{Bytes, files};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Where a document of a plain text ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DocumentRule {
    /// At blank lines.
    #[default]
    BlankLines,
    /// At the end of each line.
    Lines,
    /// At the end of the file.
    Files,
}

/// Files of documents, in order.
#[derive(Clone, Debug)]
pub struct TextFiles {
    /// The files. What ends in `.jsonl` or `.ndjson`, gzipped or not, has a JSON object in each line; the others are plain text.
    pub paths: Vec<PathBuf>,
    /// Where documents of plain text end.
    pub rule: DocumentRule,
    /// The field of a JSON object that is the document.
    pub field: String,
}

/// Longer lines are no text: a damaged file, or one of another format.
const LONGEST_LINE: usize = 1 << 30;

impl TextFiles {
    /// The files that some patterns name.
    ///
    /// # Errors
    /// E0502 where a pattern names no file.
    pub fn new(patterns: &[PathBuf], rule: DocumentRule, field: &str) -> Checked<TextFiles> {
        let mut paths = Vec::new();
        for pattern in patterns {
            paths.extend(files(pattern).map_err(|why| failed(pattern, why))?);
        }
        Ok(TextFiles { paths, rule, field: field.to_string() })
    }

    /// All documents that are not empty, in order.
    pub(crate) fn documents(&self) -> Documents<'_> {
        Documents { files: self, next: 0, open: None }
    }
}

/// Reads documents; an error ends it.
pub(crate) struct Documents<'a> {
    files: &'a TextFiles,
    /// The file that is opened next.
    next: usize,
    open: Option<OpenText>,
}

struct OpenText {
    path: PathBuf,
    reader: BufReader<Bytes>,
    json: bool,
    /// The line that was read last, from 1.
    line: u64,
}

/// Whether a name is that of a file of JSON lines.
pub(super) fn is_json_lines(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".jsonl") || name.ends_with(".ndjson")
}

impl Iterator for Documents<'_> {
    type Item = Checked<String>;

    fn next(&mut self) -> Option<Checked<String>> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => {
                    let path = self.files.paths.get(self.next)?;
                    self.next += 1;
                    match OpenText::new(path) {
                        Ok(open) => open,
                        Err(e) => return Some(self.end(e)),
                    }
                }
            };
            match open.document(self.files) {
                Ok(Some(text)) => {
                    self.open = Some(open);
                    // A document without a character has no tokens.
                    if !text.trim().is_empty() {
                        return Some(Ok(text));
                    }
                }
                Ok(None) => {}
                Err(e) => return Some(self.end(e)),
            }
        }
    }
}

impl Documents<'_> {
    fn end<T>(&mut self, error: Box<meshwright_diag::Diagnostic>) -> Checked<T> {
        self.next = self.files.paths.len();
        Err(error)
    }
}

impl OpenText {
    fn new(path: &Path) -> Checked<OpenText> {
        let bytes = Bytes::stream(path).map_err(|why| failed(path, why))?;
        let reader = BufReader::with_capacity(1 << 16, bytes);
        Ok(OpenText { path: path.to_path_buf(), reader, json: is_json_lines(path), line: 0 })
    }

    /// The next document; `None` at the end of the file.
    fn document(&mut self, files: &TextFiles) -> Checked<Option<String>> {
        if self.json {
            return self.json_line(&files.field);
        }
        match files.rule {
            DocumentRule::Lines => self.text_line(),
            DocumentRule::BlankLines => self.lines(|line| line.trim().is_empty()),
            DocumentRule::Files => self.lines(|_| false),
        }
    }

    /// Lines up to one at which a document ends, which is left out; `None` at the end of the file.
    fn lines(&mut self, ends: impl Fn(&str) -> bool) -> Checked<Option<String>> {
        let mut all: Option<String> = None;
        while let Some(line) = self.text_line()? {
            if ends(&line) {
                return Ok(Some(all.unwrap_or_default()));
            }
            match &mut all {
                Some(all) => {
                    all.push('\n');
                    all.push_str(&line);
                }
                None => all = Some(line),
            }
        }
        Ok(all)
    }

    /// The next line without its end.
    fn text_line(&mut self) -> Checked<Option<String>> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(LONGEST_LINE as u64).read_until(b'\n', &mut bytes);
        read.map_err(|e| failed(&self.path, format!("after line {}: {e}", self.line)))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        if bytes.len() >= LONGEST_LINE {
            return Err(failed(&self.path, format!("line {} has more than {LONGEST_LINE} bytes", self.line)));
        }
        if bytes.ends_with(b"\n") {
            bytes.pop();
        }
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
        if self.line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            (*failed(&self.path, format!("line {} is not UTF-8 from its byte {at} on", self.line)))
                .help("convert it: `iconv -f LATIN1 -t UTF-8`")
        })?;
        Ok(Some(text))
    }

    fn json_line(&mut self, field: &str) -> Checked<Option<String>> {
        let Some(line) = self.text_line()? else { return Ok(None) };
        if line.trim().is_empty() {
            return Ok(Some(line));
        }
        let at = self.line;
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line)
            .map_err(|e| failed(&self.path, format!("line {at} is not a JSON object: {e}")))?;
        match object.remove(field) {
            Some(serde_json::Value::String(text)) => Ok(Some(text)),
            Some(_) => {
                Err(failed(&self.path, format!("the field `{field}` of the object in line {at} is not text")))
            }
            None => {
                let names: Vec<&str> = object.keys().map(String::as_str).collect();
                let message =
                    format!("`{}`: the object in line {at} has no field `{field}`", self.path.display());
                Err(refused(
                    message,
                    format!("it has {}: choose one with `--json-field`", crate::text::listed(&names)),
                ))
            }
        }
    }
}
