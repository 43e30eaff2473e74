//! Documents of text files, one after the other: plain text or JSON lines, gzipped or not. What is long comes in parts, as
//! [`pieces`] cuts it, so that its length is no matter.

use super::document_split::{first_end, pieces};
use super::lines::Lines;
use super::{failed, refused};
use crate::files;
use meshwright_files::Checked;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// The rule by which documents of a plain text end.
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
    /// The rule for documents of plain text.
    pub rule: DocumentRule,
    /// The field of a JSON object that is the document.
    pub field: String,
    /// The field or column of a second text, where each example is a pair of texts.
    pub second: Option<String>,
}

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
        Ok(TextFiles { paths, rule, field: field.to_string(), second: None })
    }

    /// All documents that are not empty, in order.
    pub(crate) fn documents(&self) -> impl Iterator<Item = Checked<String>> {
        let mut parts = self.parts();
        std::iter::from_fn(move || {
            let mut document = String::new();
            loop {
                match parts.next()? {
                    Ok(part) if part.ends => return Some(Ok(document + &part.text)),
                    Ok(part) => document += &part.text,
                    Err(e) => return Some(Err(e)),
                }
            }
        })
    }

    /// The same in parts.
    pub(crate) fn parts(&self) -> DocumentParts<'_> {
        DocumentParts { files: self, next: 0, open: None, within: false }
    }
}

/// A part of a document.
#[derive(Debug)]
pub(crate) struct DocumentPart {
    text: String,
    /// Set in the last one.
    pub(crate) ends: bool,
}

impl AsRef<str> for DocumentPart {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Reads documents; an error ends it.
pub(crate) struct DocumentParts<'a> {
    files: &'a TextFiles,
    /// The file that is opened next.
    next: usize,
    open: Option<OpenText>,
    /// Set where the last part was not the end of its document.
    within: bool,
}

struct OpenText {
    path: PathBuf,
    lines: Lines,
    json: bool,
    /// The text that was read of a document.
    text: String,
    /// It has a line, and anything but blanks.
    begun: bool,
    real: bool,
    /// What the last line begins with, where that may be a blank line.
    blanks: Option<String>,
    /// Parts of an object's text.
    ready: VecDeque<DocumentPart>,
}

/// Whether a name is that of a file of JSON lines.
pub(super) fn is_json_lines(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".jsonl") || name.ends_with(".ndjson")
}

impl Iterator for DocumentParts<'_> {
    type Item = Checked<DocumentPart>;

    fn next(&mut self) -> Option<Checked<DocumentPart>> {
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
            match open.part(self.files) {
                Ok(Some(part)) => {
                    self.open = Some(open);
                    let goes_on = std::mem::replace(&mut self.within, !part.ends);
                    // A document without a character has no tokens.
                    if goes_on || !part.ends || !part.text.trim().is_empty() {
                        return Some(Ok(part));
                    }
                }
                Ok(None) => {}
                Err(e) => return Some(self.end(e)),
            }
        }
    }
}

impl DocumentParts<'_> {
    fn end<T>(&mut self, error: Box<meshwright_diag::Diagnostic>) -> Checked<T> {
        self.next = self.files.paths.len();
        Err(error)
    }
}

impl OpenText {
    fn new(path: &Path) -> Checked<OpenText> {
        Ok(OpenText {
            path: path.to_path_buf(),
            lines: Lines::open(path)?,
            json: is_json_lines(path),
            text: String::new(),
            begun: false,
            real: false,
            blanks: None,
            ready: VecDeque::new(),
        })
    }

    /// The next part; `None` at the end of the file.
    fn part(&mut self, files: &TextFiles) -> Checked<Option<DocumentPart>> {
        if !self.json {
            return self.part_of_text(files.rule);
        }
        if self.ready.is_empty()
            && let Some(text) = self.json_line(&files.field)?
        {
            self.ready =
                pieces(&text).into_iter().map(|p| DocumentPart { text: p.into(), ends: false }).collect();
            self.ready.iter_mut().next_back().into_iter().for_each(|last| last.ends = true);
        }
        Ok(self.ready.pop_front())
    }

    fn part_of_text(&mut self, rule: DocumentRule) -> Checked<Option<DocumentPart>> {
        loop {
            // Where there are only blanks up to here, they may be all of the document.
            if let Some(end) = first_end(&self.text).filter(|_| self.real) {
                let rest = self.text.split_off(end);
                let text = std::mem::replace(&mut self.text, rest);
                return Ok(Some(DocumentPart { text, ends: false }));
            }
            let Some(part) = self.lines.part()? else {
                return Ok(self.begun.then(|| self.document()));
            };
            let real = !part.text.trim().is_empty();
            if part.begins {
                self.blanks = (rule == DocumentRule::BlankLines).then(String::new);
            }
            match &mut self.blanks {
                Some(blanks) if !real => {
                    *blanks += &part.text;
                    if part.ends {
                        return Ok(Some(self.document()));
                    }
                    continue;
                }
                Some(_) => {
                    self.begin_line();
                    self.text += &self.blanks.take().unwrap_or_default();
                }
                None if part.begins => self.begin_line(),
                None => {}
            }
            self.text += &part.text;
            self.real |= real;
            if part.ends && rule == DocumentRule::Lines {
                return Ok(Some(self.document()));
            }
        }
    }

    fn begin_line(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            self.text.push('\n');
        }
    }

    /// The last part of a document.
    fn document(&mut self) -> DocumentPart {
        (self.begun, self.real) = (false, false);
        DocumentPart { text: std::mem::take(&mut self.text), ends: true }
    }

    fn json_line(&mut self, field: &str) -> Checked<Option<String>> {
        let Some(line) = self.lines.whole()? else { return Ok(None) };
        if line.trim().is_empty() {
            return Ok(Some(line));
        }
        let at = self.lines.number();
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
                    format!(
                        "it has {}: choose one with `--json-field`",
                        meshwright_files::text::listed(&names)
                    ),
                ))
            }
        }
    }
}
