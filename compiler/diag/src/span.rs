//! Where a piece of text stands: files by number, spans by byte offset.

use serde::{Deserialize, Serialize};

/// Number of a file in [`Sources`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A half-open range of bytes of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The span of `start..end` in `file`.
    pub fn new(file: FileId, start: usize, end: usize) -> Self {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Span { file, start: clamp(start), end: clamp(end) }
    }

    /// The smallest span that holds both; `self` where they are in different files.
    pub fn to(self, other: Span) -> Span {
        if self.file != other.file {
            return self;
        }
        Span { file: self.file, start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A place as people count it: lines and columns from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Location {
    /// Name of the file as the user gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// All source texts of one run.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<SourceText>,
}

#[derive(Clone, Debug)]
struct SourceText {
    name: String,
    text: String,
    /// Where each line begins: what names the line of every value would else count newlines again for each.
    lines: Vec<u32>,
}

impl Sources {
    /// No files yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file and returns its number. `name` is what messages show.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> FileId {
        let (name, text) = (name.into(), text.into());
        let begins = text.match_indices('\n').map(|(i, _)| i as u32 + 1);
        let lines = std::iter::once(0).chain(begins).collect();
        self.files.push(SourceText { name, text, lines });
        FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX))
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Name of a file as messages show it.
    pub fn name(&self, file: FileId) -> &str {
        self.files.get(file.0 as usize).map_or("<unknown>", |f| &f.name)
    }

    /// Text of a file.
    pub fn text(&self, file: FileId) -> &str {
        self.files.get(file.0 as usize).map_or("", |f| &f.text)
    }

    /// The text that a span covers; empty where the span does not fit.
    pub fn slice(&self, span: Span) -> &str {
        self.text(span.file).get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// Line and column of the start of a span.
    pub fn locate(&self, span: Span) -> Location {
        let text = self.text(span.file);
        let mut at = (span.start as usize).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let line = self.line_at(span.file, at);
        let begin = self.files.get(span.file.0 as usize).map_or(0, |f| f.lines[line - 1] as usize);
        let column = text[begin..at].chars().count() + 1;
        Location { file: self.name(span.file).to_string(), line, column }
    }

    /// The number of the line that a byte of a file is on, from 1.
    fn line_at(&self, file: FileId, at: usize) -> usize {
        self.files.get(file.0 as usize).map_or(1, |f| f.lines.partition_point(|b| *b as usize <= at))
    }

    /// Line number, from 1, of the start of a span.
    pub fn line(&self, span: Span) -> usize {
        self.line_at(span.file, (span.start as usize).min(self.text(span.file).len()))
    }
}
