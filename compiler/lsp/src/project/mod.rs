//! Models with their layouts, and what the compiler knows of them.

mod analysis;
mod choice;
mod compiled_model;
mod files;
mod find;

pub(crate) use analysis::Analysis;
pub(crate) use compiled_model::PlacedModel;
pub(crate) use find::beside;

use crate::snapshot::Snapshot;
use crate::text::LanguageKind;
use find::ModelPair;
use meshwright_sorted::SortedSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most analyses that are kept.
const KEPT: usize = 16;

/// The most texts of folders among which other uses of a name are looked for.
const MOST_AROUND: usize = 200;

fn kind_of(snapshot: &Snapshot, path: &Path) -> LanguageKind {
    snapshot.documents.get(path).map_or_else(|| LanguageKind::of(path), |d| d.kind)
}

/// Analyses that were made, the newest last: as long as no text of one changes it is not made again.
#[derive(Default)]
pub(crate) struct Projects {
    kept: Vec<Arc<Analysis>>,
}

impl Projects {
    /// The analysis that a text belongs to; `None` for a layout that belongs to no model.
    pub(crate) fn of(&mut self, snapshot: &Snapshot, path: &Path) -> Option<Arc<Analysis>> {
        Some(self.of_pair(snapshot, find::pair(snapshot, path, kind_of(snapshot, path))?))
    }

    /// An analysis that is not kept.
    pub(crate) fn fresh(&self, snapshot: &Snapshot, path: &Path) -> Option<Arc<Analysis>> {
        Some(Arc::new(Analysis::of(snapshot, find::pair(snapshot, path, kind_of(snapshot, path))?)))
    }

    /// The other analyses of the workspace that may share a text with one: of open texts, and of those in the folders of its
    /// texts.
    pub(crate) fn around(&mut self, snapshot: &Snapshot, of: &Analysis) -> Vec<Arc<Analysis>> {
        let own = of.files.iter().filter(|f| f.on_disk).filter_map(|f| f.path.parent());
        let folders: SortedSet<&Path> = own.chain(snapshot.folders.iter().map(PathBuf::as_path)).collect();
        let mut paths: SortedSet<PathBuf> = snapshot.documents.iter().map(|(p, _)| p.to_path_buf()).collect();
        paths.extend(folders.into_iter().flat_map(|f| snapshot.texts_in(f)).take(MOST_AROUND));
        let mut out: Vec<Arc<Analysis>> = Vec::new();
        for path in paths {
            let Some(pair) = find::pair(snapshot, &path, kind_of(snapshot, &path)) else { continue };
            if pair != of.pair && out.iter().all(|a| a.pair != pair) {
                out.push(self.of_pair(snapshot, pair));
            }
        }
        out
    }

    fn of_pair(&mut self, snapshot: &Snapshot, pair: ModelPair) -> Arc<Analysis> {
        if let Some(i) = self.kept.iter().position(|a| a.pair == pair) {
            let kept = self.kept.remove(i);
            if kept.is_still(snapshot) {
                self.kept.push(kept.clone());
                return kept;
            }
        }
        let made = Arc::new(Analysis::of(snapshot, pair));
        if self.kept.len() >= KEPT {
            self.kept.remove(0);
        }
        self.kept.push(made.clone());
        made
    }
}
