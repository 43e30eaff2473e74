//! Files whose text is replaced: all of it or nothing.

use std::io::{self, Write};
use std::path::Path;

/// Replaces the text of a file in one step, keeping its permissions and, of a link, the link. Refuses where the file is
/// read-only or no longer holds `old`.
pub(crate) fn replace(path: &Path, old: &[u8], new: &str) -> io::Result<()> {
    let path = path.canonicalize()?;
    if std::fs::read(&path)? != old {
        return Err(io::Error::other("it was changed meanwhile"));
    }
    let permissions = std::fs::metadata(&path)?.permissions();
    if permissions.readonly() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is read-only"));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut temp = tempfile::NamedTempFile::new_in(folder)?;
    temp.write_all(new.as_bytes())?;
    temp.as_file().set_permissions(permissions)?;
    temp.as_file().sync_all()?;
    temp.persist(&path).map_err(|e| e.error)?;
    Ok(())
}
