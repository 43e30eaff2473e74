//! `use "layers.mw"`: the files that a file needs, each once, those that others need first.

use crate::resolve::report::Report;
use meshwright_diag::{Diagnostic, FileId, Outcome, Span, codes};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{ItemKind, ModelFile, Use};

/// Gives the parsed file of a path that `use` names at a place, or says why not. The path is relative to the file of that
/// place. One file must get one [`FileId`], however often it is asked for: by it files are told apart.
pub type Loader<'l> = dyn FnMut(&str, Span) -> Outcome<ModelFile> + 'l;

/// The deepest chain of files that use one another.
const MAX_DEPTH: usize = 32;
/// The most files asked for in one run, by whatever path.
const MAX_FILES: usize = 256;

struct Loading<'r, 'l> {
    load: &'r mut Loader<'l>,
    report: &'r mut Report,
    /// Files that are being read, with the place that asked for them.
    open: Vec<(FileId, Option<Span>)>,
    done: Vec<FileId>,
    files: Vec<ModelFile>,
    /// Which file a path was in the file that uses it: nothing is read twice.
    known: SortedMap<(FileId, String), FileId>,
    asked: usize,
}

/// All files that `file` uses, directly or through others.
pub(in crate::resolve) fn used_files(
    file: &ModelFile,
    load: &mut Loader<'_>,
    report: &mut Report,
) -> Vec<ModelFile> {
    let id = file.items.first().map(|i| i.span.file);
    let open = id.map(|id| (id, None)).into_iter().collect();
    let mut loading = Loading {
        load,
        report,
        open,
        done: Vec::new(),
        files: Vec::new(),
        known: SortedMap::new(),
        asked: 0,
    };
    loading.visit(file);
    loading.files
}

impl Loading<'_, '_> {
    fn visit(&mut self, file: &ModelFile) {
        for item in &file.items {
            let ItemKind::Use(wanted) = &item.kind else { continue };
            let place = (item.span.file, wanted.path.clone());
            if let Some(id) = self.known.get(&place) {
                self.circle(*id, wanted);
                continue;
            }
            self.asked += 1;
            if self.open.len() > MAX_DEPTH || self.asked > MAX_FILES {
                let text = format!("more than {MAX_DEPTH} files deep or {MAX_FILES} files in all");
                self.report.push(
                    Diagnostic::error(codes::E0219, format!("too many files use one another: {text}"))
                        .at(wanted.path_span, "one too many")
                        .help("put the layers into fewer files; files that use each other in a circle are one file"),
                );
                return;
            }
            let (tree, found) = (self.load)(&wanted.path, wanted.path_span);
            found.into_iter().for_each(|d| self.report.push(d));
            let Some(tree) = tree else {
                self.report.names_missing = true;
                continue;
            };
            let Some(id) = tree.items.first().map(|i| i.span.file) else { continue };
            self.known.insert(place, id);
            if self.circle(id, wanted) || self.done.contains(&id) {
                continue;
            }
            self.open.push((id, Some(wanted.path_span)));
            self.visit(&tree);
            self.open.pop();
            self.done.push(id);
            self.files.push(tree);
        }
    }

    /// Whether a file is being read that is used, which is reported.
    fn circle(&mut self, id: FileId, wanted: &Use) -> bool {
        let Some(k) = self.open.iter().position(|o| o.0 == id) else { return false };
        let mut d = Diagnostic::error(codes::E0211, format!("`{}` uses itself", wanted.path))
            .at(wanted.path_span, "leads back to a file that is being read");
        for (_, span) in &self.open[k..] {
            if let Some(span) = span.filter(|s| *s != wanted.path_span) {
                d = d.and(span, "through here");
            }
        }
        self.report.push(d.help("move what both files need into a third one"));
        true
    }
}
