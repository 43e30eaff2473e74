//! What the server is given by the program that it is a part of.

use std::path::{Path, PathBuf};

/// Files, and texts that ship. The server reads and writes nothing itself.
pub trait Host: Send + Sync {
    /// The text of a file.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn read(&self, path: &Path) -> Result<String, String>;

    /// The model files and layout files of a folder, without those below it, in order.
    fn texts_in(&self, folder: &Path) -> Vec<PathBuf>;

    /// A file of the standard library, by the path that `use` names: `std:nn`.
    ///
    /// # Errors
    /// Why there is none.
    fn standard(&self, name: &str) -> Result<&'static str, Box<meshwright_diag::Diagnostic>>;

    /// The names of the layouts that ship, with their texts.
    fn layouts(&self) -> Vec<(&'static str, &'static str)>;

    /// Puts a text that ships where an editor can open it; `None` where there is no such place.
    fn shelve(&self, name: &str, text: &str) -> Option<PathBuf>;
}
