//! Folders, and what lies in them. Whatever is below a folder that somebody has named may come from a stranger: it is reached
//! name by name from the open folder above it, so that no link leads out, neither that of a file nor that of a folder, also where
//! it is put there meanwhile.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fsync, mkdirat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The settings of a run, by which a folder is that of one.
pub const SETTINGS: &str = "run.toml";

/// To open a folder.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its name.
    pub name: OsString,
    /// Its path: the folder's, and its name.
    pub path: PathBuf,
    /// What it is; a link is a link.
    pub kind: FileType,
    /// Bytes of a file.
    pub bytes: u64,
}

/// All entries of a folder, in order of names.
///
/// # Errors
///
/// The system's error if it cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<FolderEntry>> {
    Folder::at(folder).entries()
}

/// A folder that somebody has named, or one below it. Nothing is opened before it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
    below: Vec<String>,
}

impl Folder {
    /// The folder that a path leads to, through links too: whoever has named it means it.
    pub fn at(path: impl Into<PathBuf>) -> Folder {
        let root = path.into();
        Folder { root: if root.as_os_str().is_empty() { ".".into() } else { root }, below: Vec::new() }
    }

    /// The folder of that name in it, which is refused where it is a link.
    pub fn below(&self, name: &str) -> Folder {
        Folder { root: self.root.clone(), below: [&self.below[..], &[name.into()]].concat() }
    }

    /// The folder that was named, which it is or lies below.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its path, to be shown: what is opened by it may be elsewhere.
    pub fn path(&self) -> PathBuf {
        self.below.iter().fold(self.root.clone(), |path, name| path.join(name))
    }

    /// Opens it.
    fn opened(&self) -> io::Result<OwnedFd> {
        let mut folder = retry_on_intr(|| open(&self.root, FOLDER, Mode::empty()))?;
        for name in &self.below {
            let name = plain(name)?;
            folder = retry_on_intr(|| openat(&folder, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()))
                .map_err(|e| explained(&folder, name, e, "a folder"))?;
        }
        Ok(folder)
    }

    /// Makes it where it is missing, durably.
    ///
    /// # Errors
    ///
    /// The system's error, also if a link has the name of a folder below the named one.
    pub fn create(self) -> io::Result<Folder> {
        // Each folder that is made now has to be made durable in the one above it.
        let made: Vec<&Path> = self.root.ancestors().take_while(|a| !a.is_dir()).collect();
        std::fs::create_dir_all(&self.root)?;
        for parent in made.iter().rev().filter_map(|new| new.parent()) {
            Folder::at(parent).sync_folder()?;
        }
        for depth in 0..self.below.len() {
            let above = Folder { root: self.root.clone(), below: self.below[..depth].to_vec() }.opened()?;
            match mkdirat(&above, plain(&self.below[depth])?, Mode::from_raw_mode(0o777)) {
                Ok(()) => fsync(&above)?,
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.opened()?;
        Ok(self)
    }

    /// Whether it is there.
    ///
    /// # Errors
    ///
    /// If another kind of entry is there, such as a link.
    pub fn exists(&self) -> io::Result<bool> {
        match self.opened() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// All that is in it, in order of names.
    ///
    /// # Errors
    ///
    /// The system's error if it cannot be read.
    pub fn entries(&self) -> io::Result<Vec<FolderEntry>> {
        let (opened, path) = (self.opened()?, self.path());
        let mut found = Vec::new();
        // The standard library panics where the system reports an error as a folder is closed, as disks over a network may.
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            match statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(is) => found.push(FolderEntry {
                    name: name.into(),
                    path: path.join(name),
                    kind: FileType::from_raw_mode(is.st_mode),
                    bytes: u64::try_from(is.st_size).unwrap_or_default(),
                }),
                // Somebody has just removed it.
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Kind of the entry of that name, if there is one; a link is a link.
    pub fn kind(&self, name: &str) -> Option<FileType> {
        let is = statat(self.opened().ok()?, plain(name).ok()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FileType::from_raw_mode(is.st_mode))
    }

    /// Opens a file in it: a link, a pipe or a device is refused, and never waited for.
    ///
    /// # Errors
    ///
    /// The system's error, or the kind of the entry if it is not a file.
    pub fn file(&self, name: impl AsRef<OsStr>, flags: OFlags) -> io::Result<File> {
        let (folder, name) = (self.opened()?, plain(&name)?);
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = retry_on_intr(|| openat(&folder, name, flags, Mode::from_raw_mode(0o666)));
        let file = File::from(opened.map_err(|e| explained(&folder, name, e, "a regular file"))?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("it is a pipe, a device or a folder, not a regular file")),
        }
    }

    /// The content of a file in it.
    ///
    /// # Errors
    ///
    /// The errors of [`Folder::file`], and the system's error while reading.
    pub fn read(&self, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(name, OFlags::RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Gives what has a name another one, in place of what has that. Durable only after [`Folder::sync_folder`].
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let folder = self.opened()?;
        Ok(renameat(&folder, plain(from)?, &folder, plain(to)?)?)
    }

    /// Removes a file. Durable only after [`Folder::sync_folder`].
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(self.opened()?, plain(name)?, AtFlags::empty())?)
    }

    /// Removes it, where it lies below one that was named and is empty.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn remove_empty(&self) -> io::Result<()> {
        let (last, above) = self.below.split_last().ok_or(io::ErrorKind::InvalidInput)?;
        let above = Folder { root: self.root.clone(), below: above.to_vec() };
        Ok(unlinkat(above.opened()?, plain(last)?, AtFlags::REMOVEDIR)?)
    }

    /// Makes renames and removals durable.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn sync_folder(&self) -> io::Result<()> {
        Ok(fsync(self.opened()?)?)
    }
}

/// Whether a folder holds a run. One whose settings are a link holds one that cannot be used, of which reading them says why.
pub fn holds_run(folder: &Path) -> bool {
    Folder::at(folder).kind(SETTINGS).is_some_and(|kind| kind.is_file() || kind.is_symlink())
}

/// A name that cannot lead anywhere else.
fn plain<S: AsRef<OsStr> + ?Sized>(name: &S) -> io::Result<&OsStr> {
    let name = name.as_ref();
    let leads_on = name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/');
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file");
    if leads_on { Err(refused()) } else { Ok(name) }
}

/// Why something is not `wanted`: the system says of a link that there are too many, and of a socket that it lacks a device.
fn explained(folder: &OwnedFd, name: &OsStr, error: Errno, wanted: &str) -> io::Error {
    let kind = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map(|is| FileType::from_raw_mode(is.st_mode));
    let is = match kind {
        Ok(FileType::Symlink) => "a symbolic link",
        Ok(FileType::RegularFile) if wanted == "a folder" => "a file",
        Ok(FileType::Directory) if wanted != "a folder" => "a folder",
        Err(_) | Ok(FileType::RegularFile | FileType::Directory) => return error.into(),
        Ok(_) => "a pipe, a device or a socket",
    };
    io::Error::other(format!("it is {is}, not {wanted}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_below_a_folder_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, evil) = (dir.path().join("mine"), dir.path().join("evil"));
        for at in [&mine, &evil] {
            std::fs::create_dir(at).unwrap();
            std::fs::write(at.join("file"), "1").unwrap();
        }
        symlink("../mine", evil.join("out")).unwrap();
        symlink("../mine/file", evil.join("link")).unwrap();
        symlink("evil", dir.path().join("named")).unwrap();
        // Whoever names a link means what it leads to.
        let folder = Folder::at(dir.path().join("named"));
        assert!(folder.exists().unwrap() && !folder.below("none").exists().unwrap());
        assert_eq!(folder.entries().unwrap().len(), 3);
        let out = folder.below("out");
        let refused = [
            out.exists().map(drop),
            out.entries().map(drop),
            out.file("file", OFlags::RDONLY).map(drop),
            out.rename("file", "other"),
            out.remove("file"),
            out.sync_folder(),
            out.clone().create().map(drop),
            out.below("deeper").create().map(drop),
            folder.file("link", OFlags::RDONLY).map(drop),
            folder.file("link", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC).map(drop),
        ];
        for (n, result) in refused.into_iter().enumerate() {
            let why = result.unwrap_err().to_string();
            assert!(why.starts_with("it is a symbolic link, not a"), "{n}: {why}");
        }
        assert!(out.remove_empty().is_err() && folder.remove_empty().is_err());
        for name in ["../mine/file", "..", "", "/etc/passwd"] {
            let why = folder.file(name, OFlags::RDONLY).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(std::fs::read_to_string(mine.join("file")).unwrap(), "1");
        assert_eq!(entries(&mine).unwrap().len(), 1);
        // What replaces or removes a link leaves alone what it leads to.
        folder.rename("file", "link").unwrap();
        folder.remove("out").unwrap();
        assert!(mine.join("file").is_file());
    }

    #[test]
    fn what_is_no_file_is_said_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(dir.path());
        folder.clone().below("a").below("b").create().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap();
        assert!(made.success());
        for flags in [OFlags::RDONLY, OFlags::WRONLY] {
            let why = |name: &str| folder.file(name, flags).unwrap_err().to_string();
            assert!(why("pipe").ends_with("not a regular file"), "{}", why("pipe"));
            assert!(why("a").ends_with("a folder, not a regular file"), "{}", why("a"));
        }
        assert_eq!(folder.file("none", OFlags::RDONLY).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(folder.below("pipe").exists().unwrap_err().to_string().ends_with("not a folder"));
    }
}
