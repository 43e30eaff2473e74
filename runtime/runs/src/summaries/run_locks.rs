//! Which runs a process is at work in.

use meshwright_sorted::SortedMap;
use rustix::fs::{major, minor};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A lock that some process holds, but for the inode of its file.
#[derive(Debug, PartialEq, Eq)]
struct HeldBy {
    /// Of the file system: major and minor number.
    device: (u32, u32),
    process: u32,
}

/// The files that some process holds a lock of, by their inodes, as the system lists them. To try the locks themselves would keep
/// a run from starting at that moment.
#[derive(Debug, Default)]
pub(super) struct HeldLocks(SortedMap<u64, Vec<HeldBy>>);

impl HeldLocks {
    /// Those of now; none where the system does not list them.
    pub(super) fn now() -> HeldLocks {
        Self::of(&std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    fn of(list: &str) -> HeldLocks {
        let mut all = HeldLocks::default();
        for (inode, by) in list.lines().filter_map(held) {
            all.0.entry(inode).or_default().push(by);
        }
        all
    }

    /// Whether a file is among them. Layered file systems show another device than the list has: there the process that holds the
    /// lock must have the file open, since on another device the inode is another file's.
    pub(super) fn has(&self, file: &Metadata) -> bool {
        let device = (major(file.dev()), minor(file.dev()));
        let by = self.0.get(&file.ino()).into_iter().flatten();
        by.into_iter().any(|by| by.device == device || is_open(by.process, file))
    }
}

/// Whether a process has a file open; false where the system does not say.
fn is_open(process: u32, file: &Metadata) -> bool {
    let all =
        meshwright_files::folder::entries(Path::new(&format!("/proc/{process}/fd"))).unwrap_or_default();
    let same = |m: Metadata| (m.dev(), m.ino()) == (file.dev(), file.ino());
    all.iter().any(|open| open.path.metadata().is_ok_and(same))
}

/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF`. A lock that is waited for has an arrow before its kind.
fn held(line: &str) -> Option<(u64, HeldBy)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    (words.get(1) == Some(&"FLOCK")).then_some(())?;
    let process = words.get(4)?.parse().ok()?;
    let mut place = words.get(5)?.split(':');
    let mut number = || u32::from_str_radix(place.next()?, 16).ok();
    let device = (number()?, number()?);
    Some((place.next()?.parse().ok()?, HeldBy { device, process }))
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
        let by = HeldBy { device: (8, 17), process: 4711 };
        assert_eq!(held("1: FLOCK  ADVISORY  WRITE 4711 08:11:1234567 0 EOF"), Some((1_234_567, by)));
        assert_eq!(held("1: -> FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"), None);
        assert_eq!(held("2: POSIX  ADVISORY  WRITE 4711 08:01:1234567 0 EOF"), None);
    }

    #[test]
    fn the_lock_of_another_file_with_the_same_inode_is_none() {
        let file = tempfile::tempfile().unwrap();
        let about = file.metadata().unwrap();
        let (major, minor) = (major(about.dev()), minor(about.dev()));
        let has = |device: &str, process: u32| {
            HeldLocks::of(&format!("1: FLOCK  ADVISORY  WRITE {process} {device}:{} 0 EOF\n", about.ino()))
                .has(&about)
        };
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(has(&format!("{major:02x}:{minor:02x}"), other.id()));
        // Of another device, as a layered file system shows it: who has the file open.
        assert!(has("fe:fe", std::process::id()) && !has("fe:fe", other.id()) && !has("fe:fe", u32::MAX));
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
