//! The few operations on files that durability rests on, as a trait, so that tests can stop between any two of them.

use crate::folder::entries;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often what fails is tried, and how long is waited in between.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What a file is read from.
pub trait FileReader: Read + Seek + Send {}

impl<T: Read + Seek + Send> FileReader for T {}

/// Operations on one folder; names are plain file names in it.
pub trait Fs {
    /// Names of the files in the folder, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens a file for reading, with its length.
    fn open(&self, name: &str) -> io::Result<(Box<dyn FileReader>, u64)>;
    /// Creates or overwrites a file with these parts in a row. Durable only after [`Fs::sync`].
    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes the content of a file durable.
    fn sync(&self, name: &str) -> io::Result<()>;
    /// Renames a file, replacing another. Durable only after [`Fs::sync_folder`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Durable only after [`Fs::sync_folder`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes renames and removals durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// Start of the names of files that are being written.
pub(crate) const TEMP: &str = ".tmp-";

/// Writes a file so that under its name there is always the old or the new content, and after return durably the new.
pub fn write_durably(fs: &dyn Fs, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let temp = format!("{TEMP}{name}");
    let written = fs.write(&temp, parts).and_then(|()| fs.sync(&temp)).and_then(|()| fs.rename(&temp, name));
    if let Err(error) = written {
        // What is left of it is in the way of nothing; the next start removes it where this cannot.
        let _ = fs.remove(&temp);
        return Err(error);
    }
    fs.sync_folder()
}

/// Removes what interrupted writes have left.
pub fn remove_leftovers(fs: &dyn Fs) -> io::Result<()> {
    for name in fs.list()?.iter().filter(|n| n.starts_with(TEMP)) {
        fs.remove(name)?;
    }
    Ok(())
}

/// Reads what may fail for the moment, as on a disk that does not answer: it is tried again. What is not there is not.
pub(crate) fn tried<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match read() {
            Err(e) if e.kind() != io::ErrorKind::NotFound && tries < TRIES => tries += 1,
            ended => return ended,
        }
        std::thread::sleep(PAUSE);
    }
}

/// Opens a file of a run's folder: one that is a link, a pipe or a device is refused, and never waited for. A link could lead
/// out of the folder.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32);
    }
    let refused = |what: &str| io::Error::other(format!("it is {what}, not a regular file"));
    let file = match options.open(path) {
        Err(_) if path.is_symlink() => return Err(refused("a symbolic link")),
        // What opening a pipe without a reader, or a socket, gives.
        Err(e) if path.exists() && !path.is_file() && !path.is_dir() => {
            return Err(refused(&format!("no file ({e})")));
        }
        other => other?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused("a pipe, a device or a folder")) }
}

/// The content of a regular file.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder of the real file system.
#[derive(Clone, Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Creates the folder where it is missing, durably.
    pub fn create(folder: impl Into<PathBuf>) -> io::Result<Disk> {
        let folder = folder.into();
        // Each folder that is made now has to be made durable in the one above it.
        let made: Vec<PathBuf> = folder.ancestors().take_while(|a| !a.is_dir()).map(PathBuf::from).collect();
        std::fs::create_dir_all(&folder)?;
        for new in made.iter().rev() {
            if let Some(parent) = new.parent() {
                sync_dir(parent)?;
            }
        }
        Ok(Disk { folder })
    }

    /// A folder that is there.
    pub fn existing(folder: impl Into<PathBuf>) -> Disk {
        Disk { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn sync_dir(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

impl Fs for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in entries(&self.folder)? {
            // A name that is not text is none of ours.
            if let (true, Ok(name)) = (entry.kind.is_file(), entry.name.into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn FileReader>, u64)> {
        let file = open_regular(&self.folder.join(name), OpenOptions::new().read(true))?;
        let len = file.metadata()?.len();
        Ok((Box::new(file), len))
    }

    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut new = OpenOptions::new();
        let mut file = open_regular(&self.folder.join(name), new.write(true).create(true).truncate(true))?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        // Some file systems write only when a file is closed, and tell of it then, when nobody hears: so before.
        file.sync_all()
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.folder.join(name))?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_dir(&self.folder)
    }
}
