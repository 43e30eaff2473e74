//! Which model and which layout belong together.

use super::choice::ViewOptions;
use crate::snapshot::Snapshot;
use crate::text::LanguageKind;
use std::path::{Component, Path, PathBuf};

/// A model with what it is shown with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelPair {
    /// The model's file.
    pub(crate) model: PathBuf,
    /// The layout.
    pub(crate) layout: Option<Rules>,
    /// All that was chosen.
    pub(crate) choice: ViewOptions,
}

/// A layout: a file, or a text that lies in none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rules {
    /// A file.
    File(PathBuf),
    /// One that ships.
    Shipped(&'static str, &'static str),
    /// The rules themselves.
    Text(String),
}

impl Rules {
    /// As people call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Rules::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Rules::Shipped(name, _) => (*name).to_string(),
            Rules::Text(text) => text.clone(),
        }
    }
}

/// The model of a text, with its layout: of a model the layout that it chooses, or the one in its folder; of a layout the model
/// that it chooses, that chooses it, or that is in its folder. `None` for a layout without a model.
pub(crate) fn pair(snapshot: &Snapshot, path: &Path, kind: LanguageKind) -> Option<ModelPair> {
    let settings = ViewOptions::of_options(&snapshot.settings.options);
    let own = chosen(snapshot, path);
    if kind == LanguageKind::Model {
        let choice = own.or(&settings);
        let layout = layout_of(snapshot, path, &choice);
        return Some(ModelPair { model: path.to_path_buf(), layout, choice });
    }
    let model = match &own.model {
        Some(name) => beside(path, name),
        None => model_of(snapshot, path)?,
    };
    let of_model = chosen(snapshot, &model);
    let choice = own.or(&of_model).or(&settings);
    Some(ModelPair { model, layout: Some(Rules::File(path.to_path_buf())), choice })
}

/// What a text chooses by a comment.
fn chosen(snapshot: &Snapshot, path: &Path) -> ViewOptions {
    let choice = snapshot.read(path).map(|text| ViewOptions::of_text(&text)).unwrap_or_default();
    let file = choice.at.is_some().then(|| path.to_path_buf());
    ViewOptions { file, ..choice }
}

fn layout_of(snapshot: &Snapshot, model: &Path, choice: &ViewOptions) -> Option<Rules> {
    let Some(named) = choice.layout.as_deref() else {
        return lone(snapshot, model, LanguageKind::Layout).map(Rules::File);
    };
    let file = beside(model, named);
    if !named.contains("->") && snapshot.read(&file).is_ok() {
        return Some(Rules::File(file));
    }
    let shipped = snapshot.host.layouts();
    match shipped.iter().find(|s| s.0 == named) {
        Some((name, text)) => Some(Rules::Shipped(name, text)),
        None => Some(Rules::Text(named.to_string())),
    }
}

/// The model of a layout that names none.
fn model_of(snapshot: &Snapshot, layout: &Path) -> Option<PathBuf> {
    let settings = ViewOptions::of_options(&snapshot.settings.options);
    let chooses = |path: &PathBuf| {
        let choice = chosen(snapshot, path).or(&settings);
        layout_of(snapshot, path, &choice).is_some_and(|rules| rules == Rules::File(layout.to_path_buf()))
    };
    if let Some(model) = lone(snapshot, layout, LanguageKind::Model) {
        return Some(model);
    }
    let open = snapshot
        .documents
        .iter()
        .filter(|(_, d)| d.kind == LanguageKind::Model)
        .map(|(path, _)| path.to_path_buf());
    let beside = layout.parent().map(|folder| snapshot.texts_in(folder)).unwrap_or_default();
    let models = beside.into_iter().filter(|p| LanguageKind::of(p) == LanguageKind::Model);
    open.chain(models).find(chooses)
}

/// The text of the other language in the folder of a text: that of the same name, or the only one in the folder.
fn lone(snapshot: &Snapshot, path: &Path, kind: LanguageKind) -> Option<PathBuf> {
    let folder = path.parent()?;
    let all: Vec<PathBuf> =
        snapshot.texts_in(folder).into_iter().filter(|p| LanguageKind::of(p) == kind).collect();
    let same = all.iter().find(|p| p.file_stem() == path.file_stem());
    match (same, all.as_slice()) {
        (Some(same), _) => Some(same.clone()),
        (None, [only]) => Some(only.clone()),
        _ => None,
    }
}

/// A path as a text in another file names it.
pub(crate) fn beside(file: &Path, name: &str) -> PathBuf {
    let at = file.parent().map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
    let mut plain = PathBuf::new();
    for part in at.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}
