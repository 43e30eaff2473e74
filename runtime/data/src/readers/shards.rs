//! Shards: tar files whose members are the parts of examples, as WebDataset has it. `0012.jpg` and `0012.cls` that follow each
//! other are one example.

use super::encoded_records::{MOST_BYTES, Member, SKIP};
use crate::source::FileRef;
use crate::source::pattern;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::text_file::open_text;
use rayon::prelude::*;
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The examples of all shards.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    pub(crate) paths: Vec<PathBuf>,
    /// Members of each input.
    pub(crate) members: Vec<Vec<Member>>,
    /// Faults of examples that are left out.
    pub(crate) skipped: Vec<String>,
}

/// Examples and faults of one shard, each with its position in bytes.
#[derive(Default)]
struct ShardIndex {
    examples: Vec<Vec<Member>>,
    faults: Vec<String>,
}

/// Finds the members of some endings (each a list, whose first one that is found counts) in all shards. Only the headers of their
/// members are read, by several threads.
pub(crate) fn list(patterns: &[FileRef], endings: &[&[String]], skip: bool) -> Checked<Shards> {
    let found = pattern::files_of(patterns);
    let found = found.map_err(|(file, why)| unreadable(&file.path.display().to_string(), &why))?;
    let paths: Vec<PathBuf> = found.into_iter().map(|f| f.1).collect();
    let listed: Vec<Result<ShardIndex, String>> =
        paths.par_iter().enumerate().map(|(i, path)| scan(path, i as u32, endings)).collect();
    let mut out = Shards { members: vec![Vec::new(); endings.len()], ..Shards::default() };
    for (path, one) in paths.iter().zip(listed) {
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
    let opened = open_text(path).map_err(|e| e.to_string())?;
    let read = Cell::new(0);
    let mut archive = tar::Archive::new(HeaderReader { file: opened, read: &read });
    let mut out = ShardIndex::default();
    let mut open: Option<Example> = None;
    let mut at = 0u64;
    for entry in archive.entries_with_seek().map_err(|e| e.to_string())? {
        read.set(0);
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                // Nothing after a broken header can be found. The example before it may go on there: that is not a second fault.
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

/// The most bytes of the headers of a member: its name and what else is said of it, which are read into memory.
const MOST_OF_HEADERS: usize = 1 << 20;

/// A shard, read by the headers of one member at a time.
struct HeaderReader<'a> {
    file: File,
    /// Bytes of the headers that were read.
    read: &'a Cell<usize>,
}

impl Read for HeaderReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(out)?;
        self.read.set(self.read.get() + n);
        match self.read.get() > MOST_OF_HEADERS {
            true => {
                let why = format!("the headers of a member have more than {MOST_OF_HEADERS} bytes");
                Err(std::io::Error::other(why))
            }
            false => Ok(n),
        }
    }
}

impl Seek for HeaderReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
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
