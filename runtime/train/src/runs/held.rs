//! Which runs a process is at work in.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The files that some process holds a lock of, as the system lists them. To try the locks themselves would keep a run from
/// starting at that moment.
#[derive(Debug, Default)]
pub(super) struct HeldLocks(BTreeSet<u64>);

impl HeldLocks {
    /// Those of now; none where the system does not list them.
    pub(super) fn now() -> HeldLocks {
        let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        HeldLocks(text.lines().filter_map(inode).collect())
    }

    /// Whether a file is among them. Layered file systems show another device than the list has: the inode must do.
    pub(super) fn has(&self, file: &Metadata) -> bool {
        self.0.contains(&file.ino())
    }
}

/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF`. A lock that is waited for has an arrow before its kind.
fn inode(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    (words.get(1) == Some(&"FLOCK")).then_some(())?;
    words.get(5)?.rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_as_long_as_it_is_held() {
        let file = tempfile::tempfile().unwrap();
        let about = file.metadata().unwrap();
        assert!(!HeldLocks::now().has(&about));
        file.lock().unwrap();
        assert!(HeldLocks::now().has(&about));
        file.unlock().unwrap();
        assert!(!HeldLocks::now().has(&about));
        assert_eq!(inode("1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"), Some(1_234_567));
        assert_eq!(inode("1: -> FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"), None);
        assert_eq!(inode("2: POSIX  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"), None);
    }
}
