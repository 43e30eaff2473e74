//! The folder of a run that is not one yet: a start that fails leaves nothing behind.

use meshwright_files::folder::entries;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The entries that a start puts into a folder. They are removed when this is dropped, and so are the folders that were made
/// for them, unless the start is committed. Entries of others stay.
#[derive(Debug)]
pub(crate) struct HalfMade {
    path: PathBuf,
    /// Folders that the start makes, the inner one first.
    made: Vec<PathBuf>,
    /// Entries of others; none before the start owns the folder, or where they cannot be listed: then no entry is removed.
    others: Option<Vec<OsString>>,
    /// Names of the entries that a run makes.
    own: fn(&str) -> bool,
    committed: AtomicBool,
}

impl HalfMade {
    /// The folder before it is made. `own` accepts the names of entries that a run makes.
    pub(crate) fn before(path: &Path, own: fn(&str) -> bool) -> HalfMade {
        let missing = |a: &&Path| !a.as_os_str().is_empty() && !a.exists();
        let made = path.ancestors().take_while(missing).map(PathBuf::from).collect();
        HalfMade { path: path.into(), made, others: None, own, committed: AtomicBool::new(false) }
    }

    /// The start owns the folder: new entries are its own, and so is `lock`.
    pub(crate) fn fill(&mut self, lock: &str) {
        let there = entries(&self.path).ok();
        self.others = there.map(|all| all.into_iter().map(|e| e.name).filter(|n| n != lock).collect());
    }

    /// The folder holds a run: nothing is removed any more.
    pub(crate) fn commit(&self) {
        self.committed.store(true, Ordering::Relaxed);
    }

    /// Removes the entries of a run that are not in `others`. The error of the start is reported already, and what cannot be
    /// removed does not keep another start from working.
    fn empty(&self, others: &[OsString]) {
        for entry in entries(&self.path).unwrap_or_default() {
            let own = entry.name.to_str().is_some_and(self.own);
            if own && !others.contains(&entry.name) {
                let _left = match entry.kind.is_dir() {
                    true => std::fs::remove_dir_all(&entry.path),
                    false => std::fs::remove_file(&entry.path),
                };
            }
        }
    }
}

impl Drop for HalfMade {
    fn drop(&mut self) {
        if self.committed.load(Ordering::Relaxed) {
            return;
        }
        if let Some(others) = &self.others {
            self.empty(others);
        }
        // A folder with other entries stays.
        let _others_are_there = self.made.iter().try_for_each(std::fs::remove_dir);
    }
}
