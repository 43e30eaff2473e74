//! Texts that somebody has named: read up to a limit, and opened so that nobody is waited for.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The text of a file of at most so many bytes.
///
/// # Errors
/// Why there is none: it cannot be opened as [`open_text`] does, it is larger, or it is not UTF-8.
pub fn text_of_at_most(path: &Path, most: usize) -> Result<String, String> {
    let mut bytes = Vec::new();
    // One byte more than is taken says that there is more, of a device too, which has no size.
    let read = open_text(path).and_then(|f| f.take(most as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => "it is a device that has nothing to read yet".to_string(),
        _ => e.to_string(),
    })?;
    if bytes.len() > most {
        return Err(format!("it has more bytes than the limit of {most}"));
    }
    String::from_utf8(bytes).map_err(|e| format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()))
}

/// Opens a text to read it, without waiting for anybody: a folder is refused, and so is a named pipe, of which nobody may ever
/// write the other end. A device has what can be read at once, such as `/proc/kmsg`, which never ends. What is open already, such
/// as `/dev/stdin`, is waited for.
///
/// # Errors
/// Where it cannot be opened, or is neither a file nor open already.
pub fn open_text(path: &Path) -> std::io::Result<File> {
    let refuse = |why: &str| Err(std::io::Error::other(why.to_string()));
    let options = || OpenOptions::new().read(true).to_owned();
    if open_already(path) {
        return options().open(path);
    }
    // Without `O_NONBLOCK` to open a pipe waits for its other end; files do not know the difference.
    let file = options().custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind {
        _ if kind.is_dir() => refuse("it is a folder"),
        _ if kind.is_fifo() => {
            refuse("it is a named pipe; write to the standard input, `/dev/stdin`, instead")
        }
        _ if kind.is_socket() => refuse("it is a socket"),
        _ => Ok(file),
    }
}

/// Whether a path is that of a file that a process has open: `/dev/stdin`, `/dev/fd/63`, `/proc/self/fd/0`.
fn open_already(path: &Path) -> bool {
    let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
    let number = |n: &str| n.bytes().all(|b| b.is_ascii_digit());
    match parts[..] {
        ["/", "dev", "stdin"] => true,
        ["/", "dev", "fd", n] | ["/", "proc", "self" | "thread-self", "fd", n] => number(n),
        ["/", "proc", process, "fd", n] => number(process) && number(n),
        _ => false,
    }
}
