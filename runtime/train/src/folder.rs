//! What a folder holds. The standard library panics where the system reports an error as a folder is closed, as disks over a
//! network may; this gives it, or has no use for it.

use rustix::fs::{Dir, Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its name.
    pub name: OsString,
    /// Its path: the folder's, and its name.
    pub path: PathBuf,
    /// What it is; a link is a link.
    pub kind: FileType,
}

/// All entries of a folder, in order of names.
///
/// # Errors
///
/// What the system says where it cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<FolderEntry>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let opened =
        rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::new(opened)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let path = folder.join(name);
        match path.symlink_metadata() {
            Ok(is) => found.push(FolderEntry { name: name.into(), path, kind: is.file_type() }),
            // Somebody has just removed it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
