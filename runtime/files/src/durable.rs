//! The few operations on files that durability rests on, as a trait, so that tests can stop between any two of them.

use crate::folder::Folder;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
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
pub const TEMP: &str = ".tmp-";

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
pub fn tried<T>(mut read: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 1;
    loop {
        match read() {
            Err(e) if e.kind() != io::ErrorKind::NotFound && tries < TRIES => tries += 1,
            ended => return ended,
        }
        std::thread::sleep(PAUSE);
    }
}

/// The content of a regular file that somebody has named, or that is in a folder of somebody else's that was named: through links
/// too, of which all files of Hugging Face's cache are ones. What is below a run's folder is read by [`Folder::file`].
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens such a file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = crate::text_file::open_text(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is a pipe or a device, not a regular file")),
    }
}

impl Fs for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        // A name that is not text is none of ours.
        let files = self.entries()?.into_iter().filter(|e| e.kind.is_file());
        Ok(files.filter_map(|e| e.name.into_string().ok()).collect())
    }

    fn open(&self, name: &str) -> io::Result<(Box<dyn FileReader>, u64)> {
        let file = self.file(name, OFlags::RDONLY)?;
        let len = file.metadata()?.len();
        Ok((Box::new(file), len))
    }

    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut file = self.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        // Some file systems write only when a file is closed, and tell of it then, when nobody hears: so before.
        file.sync_all()
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.file(name, OFlags::WRONLY)?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Folder::rename(self, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Folder::remove(self, name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        Folder::sync_folder(self)
    }
}
