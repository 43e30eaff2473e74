//! Messages between members, as files of one directory.

use std::path::PathBuf;
use std::time::Duration;

/// How often a member looks for a file.
const LOOK: Duration = Duration::from_micros(50);

/// A directory in which members meet.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    directory: PathBuf,
    me: String,
}

impl Meeting {
    /// Of the members of a communicator.
    pub(crate) fn new(name: &str, me: usize) -> std::io::Result<Meeting> {
        let directory = std::env::temp_dir().join(format!("fake-nccl-{name}"));
        std::fs::create_dir_all(&directory)?;
        Ok(Meeting { directory, me: me.to_string() })
    }

    /// Writes a message, which others see whole or not at all.
    pub(crate) fn offer(&self, name: &str, bytes: &[u8]) {
        let half = self.directory.join(format!(".{name}.{}", self.me));
        if std::fs::write(&half, bytes).is_ok() {
            let _ = std::fs::rename(&half, self.directory.join(name));
        }
    }

    /// Waits for a message; none where `ended` says so first.
    pub(crate) fn get(&self, name: &str, ended: impl Fn() -> bool) -> Option<Vec<u8>> {
        let path = self.directory.join(name);
        loop {
            if let Ok(bytes) = std::fs::read(&path) {
                return Some(bytes);
            }
            if ended() {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until a message was discarded by who got it; none where `ended` says so first.
    pub(crate) fn taken(&self, name: &str, ended: impl Fn() -> bool) -> Option<()> {
        let path = self.directory.join(name);
        while path.exists() {
            if ended() {
                return None;
            }
            std::thread::sleep(LOOK);
        }
        Some(())
    }

    pub(crate) fn discard(&self, name: &str) {
        let _ = std::fs::remove_file(self.directory.join(name));
    }

    /// This member needs the directory no more; the last one removes it.
    pub(crate) fn leave(&self, members: usize) {
        self.offer(&format!("left.{}", self.me), &[]);
        if (0..members).all(|m| self.directory.join(format!("left.{m}")).exists()) {
            let _ = std::fs::remove_dir_all(&self.directory);
        }
    }
}
