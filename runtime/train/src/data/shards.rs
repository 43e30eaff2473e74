//! Shards: tar files whose members are the parts of examples, as WebDataset has it. `0012.jpg` and `0012.cls` that follow each other
//! are one example.

use super::encoded::{MOST_BYTES, Member, SKIP};
use super::pattern;
use super::source::FileRef;
use crate::Checked;
use meshwright_diag::{Diagnostic, codes};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The examples of all shards.
#[derive(Debug, Default)]
pub(super) struct Shards {
    pub(super) paths: Vec<PathBuf>,
    /// Of each input its members.
    pub(super) members: Vec<Vec<Member>>,
    /// What is wrong with examples that are left out.
    pub(super) skipped: Vec<String>,
}

/// What one shard holds, and what is wrong with it: each with its byte.
#[derive(Default)]
struct ShardIndex {
    examples: Vec<Vec<Member>>,
    faults: Vec<String>,
}

/// Finds the members of some endings (each a list, of which the first one found counts) in all shards. Only the headers of their
/// members are read, by several threads.
pub(super) fn list(patterns: &[FileRef], endings: &[&[String]], skip: bool) -> Checked<Shards> {
    let mut paths = Vec::new();
    for file in patterns {
        let found = pattern::files(&file.path);
        paths.extend(found.map_err(|why| unreadable(&file.path.display().to_string(), &why))?);
    }
    let mut listed: Vec<Option<Result<ShardIndex, String>>> = Vec::new();
    listed.resize_with(paths.len(), || None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(paths.len()).max(1);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = paths.get(i) else { return done };
            done.push((i, scan(path, i as u32, endings)));
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for thread in others {
            match thread.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all.into_iter().for_each(|(i, one)| listed[i] = Some(one));
    });
    let mut out = Shards { members: vec![Vec::new(); endings.len()], ..Shards::default() };
    for (path, one) in paths.iter().zip(listed) {
        let Some(one) = one else { continue };
        let one = one.map_err(|why| unreadable(&path.display().to_string(), &why))?;
        if let (Some(fault), false) = (one.faults.first(), skip) {
            return Err(Box::new((*unreadable(&path.display().to_string(), fault)).help(SKIP)));
        }
        out.skipped.extend(one.faults.iter().map(|f| format!("`{}`: {f}", path.display())));
        for example in one.examples {
            out.members.iter_mut().zip(example).for_each(|(list, member)| list.push(member));
        }
    }
    out.paths = paths;
    Ok(out)
}

fn unreadable(path: &str, why: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0502, format!("the shard `{path}` cannot be read: {why}")))
}

/// The members of one example so far.
struct Example {
    key: String,
    at: u64,
    found: Vec<Option<(usize, Member)>>,
}

impl Example {
    fn is_whole(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }
}

/// Reads the headers of a shard's members. An error is one of the whole shard.
fn scan(path: &Path, file: u32, endings: &[&[String]]) -> Result<ShardIndex, String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("it is not a file".into());
    }
    let opened = File::open(path).map_err(|e| e.to_string())?;
    let mut archive = tar::Archive::new(opened);
    let mut out = ShardIndex::default();
    let mut open: Option<Example> = None;
    let mut at = 0;
    for entry in archive.entries_with_seek().map_err(|e| e.to_string())? {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                // Nothing after a broken header can be found. That the example before it goes on there is no second fault.
                open = open.filter(Example::is_whole);
                out.faults.push(format!("after byte {at}: {e}"));
                break;
            }
        };
        let size = entry.size();
        at = entry.raw_file_position();
        if at.checked_add(size).is_none_or(|end| end > meta.len()) {
            out.faults.push(format!("at byte {at}: a member of {size} bytes is cut off"));
            open = open.filter(Example::is_whole);
            break;
        }
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path_bytes();
        let Some((key, ending)) = parted(&name) else { continue };
        if open.as_ref().is_none_or(|e| e.key != key) {
            close(open.take(), endings, &mut out);
            open = Some(Example { key, at, found: vec![None; endings.len()] });
        }
        let Some(example) = &mut open else { continue };
        if size > MOST_BYTES {
            out.faults.push(format!("at byte {at}: a member of {size} bytes is larger than any record"));
            continue;
        }
        let member = Member { file, at, size: size as u32 };
        for (found, wanted) in example.found.iter_mut().zip(endings) {
            let rank = wanted.iter().position(|e| *e == ending);
            if let Some(rank) = rank.filter(|r| found.is_none_or(|(before, _)| *r < before)) {
                *found = Some((rank, member));
            }
        }
    }
    close(open, endings, &mut out);
    Ok(out)
}

fn close(example: Option<Example>, endings: &[&[String]], out: &mut ShardIndex) {
    let Some(Example { key, at, found }) = example else { return };
    match found.iter().position(Option::is_none) {
        None => out.examples.push(found.into_iter().flatten().map(|f| f.1).collect()),
        Some(k) => {
            let wanted = endings[k].join("`, `.");
            out.faults.push(format!("at byte {at}: the example `{key}` has no member `.{wanted}`"));
        }
    }
}

/// The name of a member up to the first dot after its folder, and what follows in small letters. Hidden files have none.
fn parted(name: &[u8]) -> Option<(String, String)> {
    let name = String::from_utf8_lossy(name);
    let start = name.rfind('/').map_or(0, |n| n + 1);
    let dot = name[start..].find('.').filter(|n| *n > 0)? + start;
    Some((name[..dot].to_string(), name[dot + 1..].to_ascii_lowercase()))
}
