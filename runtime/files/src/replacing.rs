//! Files that are replaced as a whole: who reads one finds the old or the new one, at any time. What is no regular file is never
//! replaced: a device or a pipe is not there to be renamed over, and a link may lead to what others need.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that is being written beside the one whose place it takes, with the rights of any new file.
#[derive(Debug)]
pub struct ReplacingFile {
    temp: NamedTempFile,
    path: PathBuf,
}

impl ReplacingFile {
    /// Begins one. Nothing stays of it where it does not take its place.
    ///
    /// # Errors
    ///
    /// Where it cannot be made, or something that is not a regular file has its name.
    pub fn beside(path: &Path) -> io::Result<ReplacingFile> {
        let there = path.symlink_metadata().map(|m| m.file_type());
        if there.is_ok_and(|kind| !kind.is_file()) {
            return Err(io::Error::other("there is something that is not a regular file"));
        }
        let mut builder = tempfile::Builder::new();
        // Collectors of files look at no such name.
        builder.prefix(".meshwright-").suffix(".tmp");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let temp = builder.tempfile_in(folder_of(path)).map_err(|e| match e.raw_os_error() {
            // Without the random name, which says nothing.
            Some(code) => io::Error::from_raw_os_error(code),
            None => e,
        })?;
        Ok(ReplacingFile { temp, path: path.into() })
    }

    /// What is written to.
    pub fn file(&self) -> &File {
        self.temp.as_file()
    }

    /// Takes its place.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn replace(self) -> io::Result<()> {
        self.temp.persist(&self.path).map(drop).map_err(|e| e.error)
    }

    /// Takes its place once all of it is on disk, and so that it has it after a crash of the machine.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn replace_durably(self) -> io::Result<()> {
        self.file().sync_all()?;
        let folder = folder_of(&self.path).to_path_buf();
        self.replace()?;
        File::open(folder)?.sync_all()
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Replaces a file, or makes it, durably.
///
/// # Errors
///
/// Those of [`ReplacingFile`].
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = ReplacingFile::beside(path)?;
    new.file().write_all(bytes)?;
    new.replace_durably()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("plain"), "old").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink("plain", at("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for name in ["folder", "link", "pipe"] {
            let before = at(name).symlink_metadata().unwrap().file_type();
            let error = write_whole(&at(name), b"new").unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{name}: {error}");
            assert_eq!(at(name).symlink_metadata().unwrap().file_type(), before, "{name}");
        }
        assert_eq!(std::fs::read(at("plain")).unwrap(), b"old");
        write_whole(&at("plain"), b"new").unwrap();
        write_whole(&at("other"), b"new").unwrap();
        assert_eq!(std::fs::read(at("plain")).unwrap(), std::fs::read(at("other")).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
    }
}
