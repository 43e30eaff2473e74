//! `lsp`: a server for editors, over standard input and output.

use crate::stop::Stop;
use meshwright_diag::Diagnostic;
use meshwright_files::cache_folder;
use meshwright_files::replacing::write_whole;
use meshwright_files::text_file::text_of_at_most;
use meshwright_lsp::{Connection, Host, SessionEnd, serve};
use meshwright_runs::catalog::{LAYOUTS, STANDARD};
use meshwright_syntax::MAX_BYTES;
use meshwright_train::project::standard_library;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command until the editor ends it.
pub(crate) fn run() -> Result<(), Stop> {
    let (connection, threads) = Connection::stdio();
    let end = serve(&connection, Arc::new(MachineFiles { shelf: shelf() }));
    drop(connection);
    match end {
        Ok(SessionEnd::Shutdown) => Ok(threads.join()?),
        // An editor that ends without a word has closed its side, or is about to.
        Ok(SessionEnd::Disconnected) => Err(Stop::Diagnosed),
        Err(e) => Err(Stop::Usage(format!(
            "{e}: `meshwright lsp` is started by an editor; `meshwright lsp --help` tells how"
        ))),
    }
}

/// The files of this machine.
struct MachineFiles {
    /// Where texts that ship are put for editors to open.
    shelf: Option<PathBuf>,
}

/// A folder among the caches of the user, for this version; below the folder for temporary files where there is none.
fn shelf() -> Option<PathBuf> {
    let caches = cache_folder().filter(|c| c.is_absolute()).map(Path::to_path_buf);
    let caches = caches.unwrap_or_else(|| std::env::temp_dir().join("meshwright"));
    Some(caches.join(env!("CARGO_PKG_VERSION")))
}

impl Host for MachineFiles {
    fn read(&self, path: &Path) -> Result<String, String> {
        text_of_at_most(path, MAX_BYTES)
    }

    fn texts_in(&self, folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let ours = |p: &PathBuf| p.extension().is_some_and(|e| e == "mw" || e == "layout");
        let mut all: Vec<PathBuf> = entries.filter(ours).collect();
        all.sort();
        all
    }

    fn standard(&self, name: &str) -> Result<&'static str, Box<Diagnostic>> {
        standard_library::text(name.strip_prefix(STANDARD).unwrap_or(name))
    }

    fn layouts(&self) -> Vec<(&'static str, &'static str)> {
        LAYOUTS.iter().map(|l| (l.name, l.text)).collect()
    }

    fn shelve(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.shelf.as_ref()?.join(name);
        if std::fs::read(&path).is_ok_and(|now| now == text.as_bytes()) {
            return Some(path);
        }
        std::fs::create_dir_all(path.parent()?).ok()?;
        write_whole(&path, text.as_bytes()).ok()?;
        Some(path)
    }
}
