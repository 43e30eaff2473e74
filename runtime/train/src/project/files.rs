//! The files that a model is read from: each once, whoever uses it and by whatever path.

use meshwright_diag::{Diagnostic, FileId, Outcome, Sources, Span, codes};
use meshwright_runs::catalog::STANDARD;
use meshwright_syntax::ast::ModelFile;
use meshwright_syntax::parse_model;
use std::path::{Component, Path, PathBuf};

#[derive(Clone, Debug)]
struct File {
    id: FileId,
    /// Where it lies: `use` in it starts from there.
    folder: PathBuf,
    /// What tells it from others.
    canonical: PathBuf,
    /// Whether it is part of the standard library.
    standard: bool,
    /// `None` where it has errors.
    tree: Option<ModelFile>,
}

/// A model's file and all that it uses, directly or through others.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    files: Vec<File>,
    /// Which file a path names in the file that uses it.
    named: Vec<(FileId, String, FileId)>,
}

impl Files {
    /// With the model's own file, which was read from `name`.
    pub(crate) fn new(name: &str, id: FileId, tree: Option<&ModelFile>) -> Files {
        let folder = Path::new(name).parent().map(Path::to_path_buf).unwrap_or_default();
        let canonical = canonical(Path::new(name));
        Files {
            files: vec![File { id, folder, canonical, standard: false, tree: tree.cloned() }],
            named: Vec::new(),
        }
    }

    /// The files that are used, in the order in which they were read.
    pub(crate) fn ids(&self) -> Vec<FileId> {
        self.files[1..].iter().map(|f| f.id).collect()
    }

    /// Those of them that are files, not part of the standard library.
    pub(crate) fn on_disk(&self) -> impl Iterator<Item = FileId> {
        self.files[1..].iter().filter(|f| !f.standard).map(|f| f.id)
    }

    /// The file of a path that `use` names at a place. What is wrong with a file is said where it is read first.
    /// `text` gives the text of a path.
    pub(crate) fn read(
        &mut self,
        path: &str,
        span: Span,
        sources: &mut Sources,
        text: &dyn Fn(&str) -> Result<String, Box<Diagnostic>>,
    ) -> Outcome<ModelFile> {
        let standard = path.starts_with(STANDARD);
        let (at, canonical) = if standard {
            // The same from everywhere.
            (PathBuf::from(path), PathBuf::from(path))
        } else {
            let folder = self.files.iter().find(|f| f.id == span.file).map(|f| f.folder.clone());
            let at = folder.unwrap_or_default().join(path);
            let canonical = canonical(&at);
            (at, canonical)
        };
        let known = self.files.iter().find(|f| f.canonical == canonical);
        if let Some(f) = known {
            let (id, tree) = (f.id, f.tree.clone());
            self.named.push((span.file, path.into(), id));
            return (tree, Vec::new());
        }
        let name = at.display().to_string();
        let text = match text(&name) {
            Ok(text) => text,
            Err(d) => return (None, vec![d.at(span, "used here")]),
        };
        let id = sources.add(name, text);
        let (tree, found) = parse_model(id, sources.text(id));
        let folder = at.parent().map(Path::to_path_buf).unwrap_or_default();
        self.files.push(File { id, folder, canonical, standard, tree: tree.clone() });
        self.named.push((span.file, path.into(), id));
        (tree, found)
    }

    /// The same file as [`Files::read`] gave, without reading anything.
    pub(crate) fn again(&self, path: &str, span: Span) -> Outcome<ModelFile> {
        let named = self.named.iter().find(|n| n.0 == span.file && n.1 == path);
        let file = named.and_then(|n| self.files.iter().find(|f| f.id == n.2));
        match file {
            Some(f) => (f.tree.clone(), Vec::new()),
            None => {
                let d = Diagnostic::error(codes::E0515, format!("cannot read `{path}`"));
                (None, vec![d.at(span, "used here")])
            }
        }
    }
}

/// A path by which a file is told from others. One that is not there, as its text may be the copy of a run, is told by its path
/// alone.
fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::CurDir => {}
                Component::ParentDir
                    if matches!(plain.components().next_back(), Some(Component::Normal(_))) =>
                {
                    plain.pop();
                }
                part => plain.push(part),
            }
        }
        plain
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::{Project, ProjectOptions};
    use std::path::Path;

    /// Codes of the errors in `main.mw` in a folder of these files, and how many texts were read.
    fn load(files: &[(&str, &str)]) -> (Vec<&'static str>, usize) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let at = dir.path().join(name);
            std::fs::create_dir_all(at.parent().unwrap_or(Path::new(""))).unwrap();
            std::fs::write(at, text).unwrap();
        }
        let model = dir.path().join("main.mw").display().to_string();
        let loaded = Project::load(&ProjectOptions { model, ..ProjectOptions::default() });
        if let Some(p) = &loaded.project {
            assert_eq!(p.texts.used.len() + 1, loaded.sources.len());
            p.with_batch(3).unwrap();
        }
        let errors = loaded.diagnostics.iter().filter(|d| d.is_error());
        (errors.map(|d| d.code.id).collect(), loaded.sources.len())
    }

    fn main(uses: &str) -> String {
        let model = "dim batch = 4, n = 3\nmodel m {\n input x[batch, n]: f32\n let y = both(x)\n loss l = mean[batch](sum[n](y))\n}\n";
        format!("{uses}{model}")
    }

    #[test]
    fn a_path_is_relative_to_the_file_that_uses_it() {
        let (found, read) = load(&[
            ("main.mw", &main("use \"parts/both.mw\"\n")),
            (
                "parts/both.mw",
                "use \"one.mw\"\nuse \"../two.mw\"\nlayer both(x) {\n return one(x) + two(x)\n}\n",
            ),
            ("parts/one.mw", "layer one(x) {\n return 2 * x\n}\n"),
            ("two.mw", "layer two(x) {\n return 3 * x\n}\n"),
            // Would be taken if paths started from the main file.
            ("one.mw", "layer one(x) {\n return nonsense\n}\n"),
        ]);
        assert_eq!((found, read), (vec![], 4));
    }

    #[test]
    fn a_file_that_two_others_use_is_read_once() {
        let (found, read) = load(&[
            ("main.mw", &main("use \"a.mw\"\nuse \"parts/b.mw\"\nlayer both(x) {\n return a(x) + b(x)\n}\n")),
            ("a.mw", "use \"shared.mw\"\nlayer a(x) {\n return shared(x)\n}\n"),
            ("parts/b.mw", "use \".././shared.mw\"\nlayer b(x) {\n return shared(x)\n}\n"),
            ("shared.mw", "layer shared(x) {\n return 2 * x\n}\n"),
        ]);
        assert_eq!((found, read), (vec![], 4));
    }

    #[test]
    fn a_circle_of_files_is_said_once() {
        let (found, read) = load(&[("main.mw", &main("use \"main.mw\"\nlayer both(x) {\n return x\n}\n"))]);
        assert_eq!((found, read), (vec!["E0211"], 1));
        let (found, read) = load(&[
            ("main.mw", &main("use \"a.mw\"\n")),
            ("a.mw", "use \"parts/b.mw\"\nlayer both(x) {\n return x\n}\n"),
            ("parts/b.mw", "use \"../a.mw\"\n"),
        ]);
        assert_eq!((found, read), (vec!["E0211"], 3));
    }
}
