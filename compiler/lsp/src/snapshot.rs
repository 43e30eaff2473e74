//! All that an answer is made of, as it was when the request came.

use crate::host::Host;
use crate::settings::EditorSettings;
use crate::text::Documents;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The texts and settings of a moment.
#[derive(Clone)]
pub(crate) struct Snapshot {
    /// Open texts.
    pub(crate) documents: Arc<Documents>,
    /// Settings.
    pub(crate) settings: Arc<EditorSettings>,
    /// The folders of the workspace.
    pub(crate) folders: Arc<Vec<PathBuf>>,
    /// Files.
    pub(crate) host: Arc<dyn Host>,
}

impl Snapshot {
    /// The text of a path: that of the editor, or else of the file.
    ///
    /// # Errors
    /// Why the file cannot be read.
    pub(crate) fn read(&self, path: &Path) -> Result<Arc<str>, String> {
        match self.documents.get(path) {
            Some(document) => Ok(document.text.clone()),
            None => self.host.read(path).map(Arc::from),
        }
    }

    /// The model files and layout files of a folder, those that are not saved yet included.
    pub(crate) fn texts_in(&self, folder: &Path) -> Vec<PathBuf> {
        let open = self.documents.iter().map(|(path, _)| path.to_path_buf());
        let mut all = self.host.texts_in(folder);
        all.extend(open.filter(|path| path.parent() == Some(folder)));
        all.sort();
        all.dedup();
        all
    }
}
