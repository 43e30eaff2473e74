//! A folder that is filled whole or not at all.

use meshwright_files::folder::{FolderEntry, entries};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Takes away what has come into a folder, unless it is committed: the folder too, where it was not there.
#[derive(Debug)]
pub(super) struct NewFolder {
    path: PathBuf,
    /// What was in it before; none where it was not there.
    before: Option<Vec<OsString>>,
    /// Whether what has come is ours, and not whole.
    filling: bool,
}

impl NewFolder {
    /// As the folder is now.
    pub(super) fn before(path: &Path) -> NewFolder {
        let names = |all: Vec<FolderEntry>| all.into_iter().map(|e| e.name).collect();
        let before = path.is_dir().then(|| entries(path).map(names).unwrap_or_default());
        NewFolder { path: path.into(), before, filling: false }
    }

    /// From here on what comes into it is ours.
    pub(super) fn fill(&mut self) {
        self.filling = true;
    }

    /// It is whole.
    pub(super) fn commit(mut self) {
        self.filling = false;
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.filling {
            return;
        }
        let before = self.before.as_deref();
        for entry in entries(&self.path).unwrap_or_default() {
            if before.is_some_and(|b| b.contains(&entry.name)) {
                continue;
            }
            // What failed is said; what cannot be taken away is left.
            let _ = match entry.kind.is_dir() {
                true => std::fs::remove_dir_all(&entry.path),
                false => std::fs::remove_file(&entry.path),
            };
        }
        if before.is_none() {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
