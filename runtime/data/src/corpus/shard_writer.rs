//! Writes the shards of one set: each appears under its name only when it is whole and on disk.

use super::failed;
use super::index::{SetIndex, ShardIndex};
use meshwright_files::Checked;
use meshwright_files::durable::{TEMP, write_durably};
use meshwright_files::folder::Folder;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of the header of an array, so that it can be filled in when its length is known.
const HEADER: usize = 128;

/// The set of some name in a folder.
pub(super) struct ShardWriter {
    disk: Folder,
    set: String,
    wide: bool,
    index: SetIndex,
    open: Option<OpenShard>,
}

/// A shard that is being written.
struct OpenShard {
    file: BufWriter<File>,
    starts: Vec<u64>,
    tokens: u64,
    text_bytes: u64,
}

impl ShardWriter {
    /// Goes on after the shards of `index`.
    pub(super) fn new(disk: Folder, set: &str, vocab: usize, index: SetIndex) -> ShardWriter {
        ShardWriter { disk, set: set.to_string(), wide: vocab > 1 << 16, index, open: None }
    }

    /// The shards that are whole.
    pub(super) fn index(&self) -> &SetIndex {
        &self.index
    }

    fn name(&self) -> String {
        format!("{}-{:05}.npy", self.set, self.index.shards.len())
    }

    /// Adds tokens of `text_bytes` bytes of text: those of a document, or more of the last one.
    pub(super) fn add(&mut self, tokens: &[u32], text_bytes: usize, goes_on: bool) -> Checked<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let name = format!("{TEMP}{}", self.name());
        let path = self.disk.path().join(&name);
        let told = |e: io::Error| unwritten(&path, &e);
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(OpenShard::new(&self.disk, &name).map_err(told)?),
        };
        if !goes_on {
            open.starts.push(open.tokens);
        }
        open.tokens += tokens.len() as u64;
        open.text_bytes += text_bytes as u64;
        let write = match self.wide {
            true => tokens.iter().try_for_each(|t| open.file.write_all(&t.to_le_bytes())),
            // Tokens are below the size of the vocabulary.
            false => tokens.iter().try_for_each(|t| open.file.write_all(&(*t as u16).to_le_bytes())),
        };
        write.map_err(told)
    }

    /// Ends the shard at hand, durably.
    pub(super) fn close(&mut self) -> Checked<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let tokens = self.name();
        let documents = format!("{}-{:05}.documents.npy", self.set, self.index.shards.len());
        let (token_count, document_count) = (open.tokens, open.starts.len() as u64);
        let text_bytes = open.text_bytes;
        let starts: Vec<u8> = open.starts.iter().flat_map(|s| s.to_le_bytes()).collect();
        let header = header("<u8", document_count);
        let temp = format!("{TEMP}{tokens}");
        let written = open
            .end(if self.wide { "<u4" } else { "<u2" })
            .and_then(|()| self.disk.rename(&temp, &tokens))
            .and_then(|()| write_durably(&self.disk, &documents, &[&header, &starts]));
        written.map_err(|e| unwritten(&self.disk.path().join(&tokens), &e))?;
        self.index.shards.push(ShardIndex { tokens, documents, token_count, document_count, text_bytes });
        Ok(())
    }
}

impl OpenShard {
    fn new(folder: &Folder, name: &str) -> io::Result<OpenShard> {
        let new = folder.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        let mut file = BufWriter::with_capacity(1 << 18, new);
        file.write_all(&[0; HEADER])?;
        Ok(OpenShard { file, starts: Vec::new(), tokens: 0, text_bytes: 0 })
    }

    fn end(self, descr: &str) -> io::Result<()> {
        let mut file = self.file.into_inner().map_err(|e| e.into_error())?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header(descr, self.tokens))?;
        file.sync_all()
    }
}

/// The header of an array of NumPy's with one dim.
fn header(descr: &str, len: u64) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({len},), }}");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(((HEADER - 10) as u16).to_le_bytes());
    out.extend(text.bytes());
    out.resize(HEADER - 1, b' ');
    out.push(b'\n');
    out
}

fn unwritten(path: &Path, e: &io::Error) -> Box<meshwright_diag::Diagnostic> {
    (*failed(path, format!("it cannot be written: {e}")))
        .help("make room, or choose another folder with `--out`")
        .into()
}
