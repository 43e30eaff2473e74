//! The texts that an analysis is made of.

use super::find::beside;
use crate::snapshot::Snapshot;
use crate::text::LineIndex;
use meshwright_diag::{Diagnostic, FileId, Outcome, Sources, Span, codes};
use meshwright_syntax::ast::ModelFile;
use meshwright_syntax::read_model;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What the path of a file of the standard library begins with.
const STANDARD: &str = "std:";

/// One of them, by its number in the sources.
#[derive(Debug)]
pub(crate) struct AnalyzedFile {
    /// Its path, or how `use` names it; of a text that lies in no file what messages call it.
    pub(crate) path: PathBuf,
    /// Whether an editor can open it by that path.
    pub(crate) on_disk: bool,
    /// Its text, or none where it could not be read.
    pub(crate) text: Option<Arc<str>>,
    lines: OnceLock<LineIndex>,
}

impl AnalyzedFile {
    /// The lines of its text.
    pub(crate) fn lines(&self) -> &LineIndex {
        self.lines.get_or_init(|| LineIndex::of(self.text.as_deref().unwrap_or_default()))
    }
}

/// A model's file and all that it uses, each once.
pub(crate) struct AnalyzedFiles<'s> {
    snapshot: &'s Snapshot,
    pub(crate) sources: Sources,
    pub(crate) all: Vec<AnalyzedFile>,
    /// Trees of the model files, whole or not, with the file of each.
    pub(crate) trees: Vec<(FileId, ModelFile)>,
}

impl<'s> AnalyzedFiles<'s> {
    pub(crate) fn new(snapshot: &'s Snapshot) -> Self {
        AnalyzedFiles { snapshot, sources: Sources::new(), all: Vec::new(), trees: Vec::new() }
    }

    /// Adds a text.
    pub(crate) fn add(&mut self, path: PathBuf, text: Option<Arc<str>>, on_disk: bool) -> FileId {
        let id = self.sources.add(path.display().to_string(), text.as_deref().unwrap_or_default());
        self.all.push(AnalyzedFile { path, on_disk, text, lines: OnceLock::new() });
        id
    }

    /// Reads a model's own file.
    pub(crate) fn model(&mut self, path: &Path) -> (FileId, Vec<Diagnostic>) {
        let read = self.snapshot.read(path);
        let (text, why) = match read {
            Ok(text) => (Some(text), None),
            Err(why) => (None, Some(unreadable(&path.display().to_string(), &why))),
        };
        let id = self.add(path.to_path_buf(), text, true);
        let (tree, mut found) = read_model(id, self.sources.text(id));
        self.trees.push((id, tree));
        found.extend(why);
        (id, found)
    }

    /// The file that `use` names at a place. Of what has errors the tree is what could be read, so that what it declares is
    /// known.
    pub(crate) fn used(&mut self, name: &str, span: Span) -> Outcome<ModelFile> {
        let standard = name.starts_with(STANDARD);
        let user = self.all.get(span.file.0 as usize).map(|f| f.path.clone()).unwrap_or_default();
        let path = if standard { PathBuf::from(name) } else { beside(&user, name) };
        let known = self.all.iter().position(|f| f.path == path).map(|i| FileId(i as u32));
        if let Some((_, tree)) = known.and_then(|id| self.trees.iter().find(|t| t.0 == id)) {
            return (Some(tree.clone()), Vec::new());
        }
        let read = match standard {
            true => self.snapshot.host.standard(name).map(Arc::from),
            false => self.snapshot.read(&path).map_err(|why| Box::new(unreadable(name, &why))),
        };
        let text = match read {
            Ok(text) => text,
            Err(d) => {
                // It is looked for again when it is written.
                self.add(path, None, false);
                return (None, vec![d.at(span, "used here")]);
            }
        };
        let id = self.add(path, Some(text), !standard);
        let (tree, found) = read_model(id, self.sources.text(id));
        self.trees.push((id, tree.clone()));
        (Some(tree), found)
    }

    /// Whether all texts are what they were.
    pub(crate) fn are_still(all: &[AnalyzedFile], snapshot: &Snapshot) -> bool {
        let read = |f: &AnalyzedFile| f.on_disk || f.text.is_none();
        all.iter().filter(|f| read(f)).all(|f| match (snapshot.read(&f.path).ok(), &f.text) {
            (Some(now), Some(then)) => Arc::ptr_eq(&now, then) || now == *then,
            (now, then) => now.is_none() && then.is_none(),
        })
    }
}

fn unreadable(name: &str, why: &str) -> Diagnostic {
    Diagnostic::error(codes::E0515, format!("cannot read `{name}`: {why}"))
}
