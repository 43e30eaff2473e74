//! What the compiler knows of a model and its layout.

use super::compiled_model::PlacedModel;
use super::files::{AnalyzedFile, AnalyzedFiles};
use super::find::{ModelPair, Rules};
use crate::snapshot::Snapshot;
use meshwright_core::names::Names;
use meshwright_core::resolve::{Inspection, inspect};
use meshwright_core::{Layout, Program, Settings, layout};
use meshwright_diag::{Diagnostic, FileId, Severity, Sources, Span, codes, has_errors};
use meshwright_syntax::ast::{ItemKind, LayoutFile, ModelFile};
use meshwright_syntax::{parse_mesh, read_layout};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A model under a layout, with all that was found in their texts.
pub(crate) struct Analysis {
    /// Model, layout and options.
    pub(crate) pair: ModelPair,
    /// The texts.
    pub(crate) sources: Sources,
    /// Their origins, by number.
    pub(crate) files: Vec<AnalyzedFile>,
    /// The model's file.
    pub(crate) model: FileId,
    /// The layout's, where there is one.
    pub(crate) layout: Option<FileId>,
    /// The trees of model files, as far as they could be read.
    pub(crate) trees: Vec<(FileId, ModelFile)>,
    /// The tree of the layout.
    pub(crate) rules: LayoutFile,
    /// Names with their meanings.
    pub(crate) names: Names,
    /// Places with what stands there.
    pub(crate) inspection: Inspection,
    /// The program, where the model has no errors.
    pub(crate) program: Option<Arc<Program>>,
    /// The layout for it, where that has no errors either.
    pub(crate) bound: Option<Layout>,
    /// All that is wrong, as far as it is known without a look at placements.
    found: Vec<Diagnostic>,
    placed: OnceLock<Option<PlacedModel>>,
}

impl Analysis {
    /// Reads, resolves and checks a model and its layout.
    pub(crate) fn of(snapshot: &Snapshot, pair: ModelPair) -> Analysis {
        let mut files = AnalyzedFiles::new(snapshot);
        let (model, mut found) = files.model(&pair.model);
        let tree = files.trees[0].1.clone();
        let choice = &pair.choice;
        let settings = Settings {
            dims: choice.dims.clone(),
            consts: choice.sets.clone(),
            size: choice.preset.clone(),
            ..Settings::default()
        };
        let broken = has_errors(&found);
        let (program, more, inspection) =
            inspect(&tree, first_model(&tree), &settings, &mut |path, span| files.used(path, span));
        found.extend(more.into_iter().filter(|d| of_interest(d, &tree, broken)));
        let program = program.filter(|_| !has_errors(&found)).map(Arc::new);
        let (text, rules, bound) = bound(snapshot, &pair, program.as_deref(), &mut files, &mut found);
        let used = files.trees[1..].iter().chain(&files.trees[..1]).map(|t| &t.1);
        let names = Names::of(&used.collect::<Vec<_>>(), text.is_some().then_some(&rules), &files.sources);
        let AnalyzedFiles { sources, all, trees, .. } = files;
        let placed = OnceLock::new();
        Analysis {
            pair,
            sources,
            files: all,
            model,
            layout: text,
            trees,
            rules,
            names,
            inspection,
            program,
            bound,
            found,
            placed,
        }
    }

    /// All that is wrong.
    pub(crate) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.found.iter().chain(self.placed().into_iter().flat_map(|p| &p.found))
    }

    /// The model under its layout, compiled; `None` where it has errors.
    pub(crate) fn placed(&self) -> Option<&PlacedModel> {
        self.placed
            .get_or_init(|| {
                let program = self.program.as_deref()?;
                // A layout with errors places nothing.
                let layout = match (self.layout, &self.bound) {
                    (Some(_), bound) => bound.clone()?,
                    (None, _) => Layout::default(),
                };
                Some(PlacedModel::of(program, layout, &self.sources, self.pair.choice.machine.as_deref()))
            })
            .as_ref()
    }

    /// The number of the file of a path.
    pub(crate) fn file(&self, path: &Path) -> Option<FileId> {
        self.files.iter().position(|f| f.path == path).map(|i| FileId(i as u32))
    }

    /// The file of a span.
    pub(crate) fn file_of(&self, span: Span) -> Option<&AnalyzedFile> {
        self.files.get(span.file.0 as usize)
    }

    /// True while all its texts are what they were.
    pub(crate) fn is_still(&self, snapshot: &Snapshot) -> bool {
        AnalyzedFiles::are_still(&self.files, snapshot)
    }
}

/// What the resolver says of a text that is being typed. A file of layers alone has no model, which is no mistake; and where the
/// text could not be read whole, that a name is not declared may be since its declaration was not read.
fn of_interest(d: &Diagnostic, tree: &ModelFile, broken: bool) -> bool {
    let lacks_model = d.code == codes::E0220 && first_model(tree).is_none() && !tree.items.is_empty();
    let follows = broken && (d.code == codes::E0201 || d.severity != Severity::Error);
    !lacks_model && !follows
}

/// The name of the first model of a file.
fn first_model(tree: &ModelFile) -> Option<&str> {
    tree.items.iter().find_map(|i| match &i.kind {
        ItemKind::Model(m) => Some(m.name.text.as_str()),
        _ => None,
    })
}

/// Reads a layout, and binds it to the program.
fn bound(
    snapshot: &Snapshot,
    pair: &ModelPair,
    program: Option<&Program>,
    files: &mut AnalyzedFiles<'_>,
    found: &mut Vec<Diagnostic>,
) -> (Option<FileId>, LayoutFile, Option<Layout>) {
    let none = LayoutFile::default();
    let Some(of) = &pair.layout else { return (None, none, None) };
    let id = match of {
        Rules::File(path) => {
            let text = snapshot.read(path).ok();
            files.add(path.clone(), text, true)
        }
        Rules::Shipped(name, text) => files.add(name.into(), Some((*text).into()), false),
        Rules::Text(text) => files.add("--layout".into(), Some(text.as_str().into()), false),
    };
    let (rules, said) = read_layout(id, files.sources.text(id));
    let mut broken = has_errors(&said);
    found.extend(said);
    let mesh = pair.choice.mesh.as_ref().and_then(|text| {
        let id = files.add("--mesh".into(), Some(text.as_str().into()), false);
        let (mesh, said) = parse_mesh(id, text);
        broken |= has_errors(&said);
        found.extend(said);
        mesh
    });
    let Some(program) = program.filter(|_| !broken) else { return (Some(id), rules, None) };
    let own = matches!(of, Rules::Text(_));
    let (bound, mut said) = layout(&rules, mesh.as_ref(), program, !own);
    // What a layout that ships says of other models is no news.
    if matches!(of, Rules::Shipped(..)) {
        said.retain(|d| d.severity != Severity::Note);
    }
    let bound = bound.filter(|_| !has_errors(&said));
    found.extend(said);
    (Some(id), rules, bound)
}
