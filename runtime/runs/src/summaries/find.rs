//! Finding runs below a folder.

use crate::run_dir::checkpoints_in;
use crate::run_error::unusable;
use meshwright_files::Checked;
use meshwright_files::folder::holds_run;
use meshwright_files::folder::{FolderEntry, entries};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Folders that were found, and folders that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFolders {
    /// By their paths.
    pub found: Vec<PathBuf>,
    /// What lies below them is not known.
    pub unread: Vec<PathBuf>,
}

/// The runs in a folder, it among them, and in all folders below, as [`folders_below`] finds them.
///
/// # Errors
///
/// E0511 where the folder itself cannot be read.
pub fn runs_below(folder: &Path) -> Checked<FoundFolders> {
    folders_below(folder, holds_run)
}

/// The first run that is found below a folder, near its top: no more than so many folders are looked into, so that a hint does
/// not read a whole disk.
pub fn run_near(folder: &Path, most: usize) -> Option<PathBuf> {
    let mut open = VecDeque::from([folder.to_path_buf()]);
    for _ in 0..most {
        let at = open.pop_front()?;
        if holds_run(&at) {
            return Some(at);
        }
        let inside = entries(&at).unwrap_or_default().into_iter().filter(|e| e.kind.is_dir());
        open.extend(inside.filter(|e| !hidden(e)).take(most).map(|e| e.path));
    }
    None
}

fn hidden(entry: &FolderEntry) -> bool {
    entry.name.as_encoded_bytes().starts_with(b".")
}

/// The folders of which something holds: of a folder and all folders below, however deep. Links are not followed, so that each is
/// found once; hidden folders, and those of the checkpoints of runs, are left out.
///
/// # Errors
///
/// E0511 where the folder itself cannot be read.
pub fn folders_below(folder: &Path, holds: impl Fn(&Path) -> bool) -> Checked<FoundFolders> {
    entries(folder).map_err(|e| unusable(folder, &e))?;
    let (mut all, mut open) = (FoundFolders::default(), vec![folder.to_path_buf()]);
    while let Some(at) = open.pop() {
        let is_run = holds_run(&at);
        match entries(&at) {
            Ok(inside) => {
                let folders = inside.into_iter().filter(|e| e.kind.is_dir());
                let shown = folders.filter(|e| !hidden(e));
                open.extend(shown.map(|e| e.path).filter(|p| !is_run || *p != checkpoints_in(&at).path()));
            }
            Err(_) => all.unread.push(at.clone()),
        }
        if holds(&at) {
            all.found.push(at);
        }
    }
    all.found.sort();
    all.unread.sort();
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn runs_are_found_at_any_depth_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for run in ["a", "sweep/b", "sweep/deeper/c", "a/inner", ".hidden/d", "a/checkpoints/e"] {
            create_dir_all(root.join(run)).unwrap();
            write(root.join(run).join("run.toml"), "").unwrap();
        }
        create_dir_all(root.join("sweep/logs")).unwrap();
        std::os::unix::fs::symlink(root.join("a"), root.join("latest")).unwrap();
        let FoundFolders { found: runs, unread } = runs_below(root).unwrap();
        let names: Vec<_> = runs.iter().map(|r| r.strip_prefix(root).unwrap().to_str().unwrap()).collect();
        assert_eq!((names, unread), (vec!["a", "a/inner", "sweep/b", "sweep/deeper/c"], vec![]));
        assert_eq!(runs_below(&root.join("a")).unwrap().found.len(), 2);
        assert_eq!(runs_below(&root.join("none")).unwrap_err().code.id, "E0511");
        assert_eq!((run_near(root, 3), run_near(root, 1)), (Some(root.join("a")), None));
        assert_eq!(run_near(&root.join("none"), 9), None);
    }
}
