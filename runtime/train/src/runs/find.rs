//! Finding runs below a folder.

use crate::Checked;
use crate::folder::entries;
use crate::run_dir::{checkpoints_in, holds_run};
use crate::run_error::unusable;
use std::path::{Path, PathBuf};

/// The runs in a folder, it among them, and in all folders below; and the folders that could not be read. Links are not followed,
/// so that each run is found once, and hidden folders are left out.
///
/// # Errors
///
/// E0511 where the folder itself cannot be read.
pub fn runs_below(folder: &Path) -> Checked<(Vec<PathBuf>, Vec<PathBuf>)> {
    entries(folder).map_err(|e| unusable(folder, &e))?;
    let (mut runs, mut unread, mut open) = (Vec::new(), Vec::new(), vec![folder.to_path_buf()]);
    while let Some(at) = open.pop() {
        let is_run = holds_run(&at);
        match entries(&at) {
            Ok(all) => {
                let folders = all.into_iter().filter(|e| e.kind.is_dir());
                let shown = folders.filter(|e| !e.name.as_encoded_bytes().starts_with(b"."));
                open.extend(shown.map(|e| e.path).filter(|p| !is_run || *p != checkpoints_in(&at)));
            }
            Err(_) => unread.push(at.clone()),
        }
        if is_run {
            runs.push(at);
        }
    }
    runs.sort();
    Ok((runs, unread))
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
        let (runs, unread) = runs_below(root).unwrap();
        let names: Vec<_> = runs.iter().map(|r| r.strip_prefix(root).unwrap().to_str().unwrap()).collect();
        assert_eq!((names, unread), (vec!["a", "a/inner", "sweep/b", "sweep/deeper/c"], vec![]));
        assert_eq!(runs_below(&root.join("a")).unwrap().0.len(), 2);
        assert_eq!(runs_below(&root.join("none")).unwrap_err().code.id, "E0511");
    }
}
