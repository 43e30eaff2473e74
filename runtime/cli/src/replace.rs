//! Files whose text is replaced: all of it or nothing.

use crate::refusal::wrong;
use crate::value_parsers::INDEX;
use meshwright_files::{Checked, ReplacingFile, write_whole};
use std::fmt::Display;
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
    let replacing = ReplacingFile::beside(&path)?;
    replacing.file().write_all(new.as_bytes())?;
    replacing.file().set_permissions(permissions)?;
    replacing.replace_durably()
}

/// Writes what a command was asked for to a file: under its name there is always the old or the new one.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Checked<()> {
    write_whole(path, bytes).map_err(|e| unwritten(path, &e))
}

/// Refuses a file that could not be written, before anything is done for it. The folder of an `index.html`, which pages are put
/// into, is made.
pub(crate) fn writable(path: &Path) -> Checked<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let makes = path.ends_with(INDEX) && !folder.exists();
    let unmade = makes.then(|| std::fs::create_dir(folder).err()).flatten();
    let why = match unmade {
        Some(e) => format!("there is no folder `{}`, and it cannot be made: {e}", folder.display()),
        None if path.is_dir() => "it is a folder".to_string(),
        None if !folder.is_dir() => format!("there is no folder `{}`", folder.display()),
        None => match ReplacingFile::beside(path) {
            Ok(_) => return Ok(()),
            Err(e) => e.to_string(),
        },
    };
    let d = *unwritten(path, &why);
    Err(Box::new(d.help("name a file in a folder that is there and that you may write to")))
}

/// A file that is not written.
pub(crate) fn unwritten(path: &Path, why: &dyn Display) -> Box<meshwright_diag::Diagnostic> {
    Box::new(wrong(format!("`{}` cannot be written: {why}", path.display())))
}
