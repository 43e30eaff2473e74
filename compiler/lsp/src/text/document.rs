//! The texts that are open in the editor.

use super::lines::LineIndex;
use lsp_types::{TextDocumentContentChangeEvent, TextEdit};
use meshwright_sorted::SortedMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which of the two languages a text is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LanguageKind {
    /// A model, or layers for models.
    Model,
    /// A layout.
    Layout,
}

impl LanguageKind {
    /// By the name of a file.
    pub(crate) fn of(path: &Path) -> LanguageKind {
        if path.extension().is_some_and(|e| e == "layout") {
            LanguageKind::Layout
        } else {
            LanguageKind::Model
        }
    }
}

/// A text that is open.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The language.
    pub(crate) kind: LanguageKind,
    /// The version that the editor gave it.
    pub(crate) version: i32,
    /// The text.
    pub(crate) text: Arc<str>,
}

impl Document {
    /// Applies changes, one after another.
    pub(crate) fn change(&mut self, version: i32, changes: Vec<TextDocumentContentChangeEvent>) {
        self.version = version;
        for change in changes {
            let Some(range) = change.range else {
                self.text = change.text.into();
                continue;
            };
            let lines = LineIndex::of(&self.text);
            let start = lines.offset(&self.text, range.start);
            let end = lines.offset(&self.text, range.end).max(start);
            let mut text = self.text.to_string();
            text.replace_range(start..end, &change.text);
            self.text = text.into();
        }
    }
}

/// All of them, by path. A copy is a snapshot: it shares the texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Documents {
    open: SortedMap<PathBuf, Document>,
}

impl Documents {
    /// Opens a text, or takes its place.
    pub(crate) fn open(&mut self, path: PathBuf, document: Document) {
        self.open.insert(path, document);
    }

    /// Closes a text: its file counts from now on.
    pub(crate) fn close(&mut self, path: &Path) {
        self.open.remove(path);
    }

    /// The text of a path.
    pub(crate) fn get(&self, path: &Path) -> Option<&Document> {
        self.open.get(path)
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, path: &Path) -> Option<&mut Document> {
        self.open.get_mut(path)
    }

    /// Opens a text with edits, none of which meets another.
    pub(crate) fn edit(&mut self, path: &Path, text: Arc<str>, edits: &[TextEdit]) {
        let lines = LineIndex::of(&text);
        let bytes = |e: &TextEdit| (lines.offset(&text, e.range.start), lines.offset(&text, e.range.end));
        let mut edits: Vec<_> = edits.iter().map(|e| (bytes(e), e.new_text.as_str())).collect();
        edits.sort();
        let mut edited = text.to_string();
        for ((start, end), new) in edits.into_iter().rev() {
            edited.replace_range(start..end, new);
        }
        let (kind, version) = self.get(path).map_or((LanguageKind::of(path), 0), |d| (d.kind, d.version));
        self.open(path.to_path_buf(), Document { kind, version, text: edited.into() });
    }

    /// All, in order of path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &Document)> {
        self.open.iter().map(|(path, d)| (path.as_path(), d))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsp_types::{Position, Range};

    #[test]
    fn changes_apply_one_after_another() {
        let mut d = Document { kind: LanguageKind::Model, version: 1, text: "α 𝄞 = 1\nend".into() };
        let at = |line, character| Position { line, character };
        let change = |start, end, text: &str| TextDocumentContentChangeEvent {
            range: Some(Range { start, end }),
            range_length: None,
            text: text.into(),
        };
        d.change(
            2,
            vec![
                change(at(0, 2), at(0, 4), "β"),
                change(at(0, 3), at(0, 3), "γ"),
                change(at(1, 0), at(9, 9), ""),
            ],
        );
        assert_eq!((&*d.text, d.version), ("α βγ = 1\n", 2));
        let whole = TextDocumentContentChangeEvent { range: None, range_length: None, text: "new".into() };
        d.change(3, vec![whole, change(at(0, 3), at(0, 1), "er")]);
        assert_eq!(&*d.text, "newer");
    }
}
