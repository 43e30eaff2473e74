//! Text files to a folder of token shards. Documents are tokenized by all cores and written in order, so the same text gives the
//! same bytes; where it was interrupted it goes on after the last shards that were whole.

use super::document_split::pieces;
use super::documents::{DocumentPart, DocumentParts, TextFiles};
use super::index::{CorpusIndex, Recipe, SetIndex, read_json};
use super::manifest::manifest;
use super::shard_writer::ShardWriter;
use super::tokenizer::TextTokenizer;
use super::trainer::TokenizerSource;
use super::{failed, refused};
use crate::TaskKind;
use meshwright_files::Checked;
use meshwright_files::durable::write_durably;
use meshwright_files::folder::{Folder, entries};
use meshwright_plan::random::{Key, uniform01};
use meshwright_sorted::SortedMap;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::Digest;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Text to tokenize, and the target.
#[derive(Clone, Debug)]
pub struct TokenizeOptions {
    /// The text.
    pub text: TextFiles,
    /// The tokenizer.
    pub tokenizer: TokenizerSource,
    /// The folder of the shards.
    pub out: PathBuf,
    /// Shares of the documents for validation and for test.
    pub held_out: (f64, f64),
    /// Number of tokens after which all shards are closed, about.
    pub shard_tokens: u64,
    /// For which task `data.toml` is written; without one, that for which the tokenizer has special tokens.
    pub task: Option<TaskKind>,
}

/// A report of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizeProgress {
    /// An interrupted run continues after this number of documents.
    Resumed(u64),
    /// Bytes of text that the tokenizer was trained on.
    Training(u64),
    /// Documents so far; tokens and bytes of text since the start of the command.
    Tokenizing([u64; 3]),
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenized {
    /// Whether it was there before, from the same text.
    pub was_there: bool,
    /// Tokens are below this.
    pub vocab: usize,
    /// The task of `data.toml`.
    pub task: TaskKind,
    /// Each set with its tokens, documents and bytes of text.
    pub sets: Vec<(String, [u64; 3])>,
}

/// The contents of an incomplete folder.
#[derive(Serialize, Deserialize)]
struct Partial {
    recipe: Recipe,
    /// The shards that are whole, by set.
    sets: SortedMap<String, SetIndex>,
    /// Documents that were read for them.
    documents: u64,
}

const PARTIAL: &str = "partial.json";
const TOKENIZER: &str = "tokenizer.json";
const MANIFEST: &str = "data.toml";

/// Text that is tokenized together.
const BATCH: usize = 4 << 20;

/// Tokenizes text.
///
/// # Errors
/// E0502 if files cannot be read or written, E0508 if the text or the folder does not allow the request.
pub fn tokenize(options: &TokenizeOptions, progress: &mut dyn FnMut(TokenizeProgress)) -> Checked<Tokenized> {
    let out = &options.out;
    let (validation, test) = options.held_out;
    if validation + test >= 1.0 {
        let message =
            format!("shares of {validation} and {test} for validation and test leave nothing to train on");
        return Err(refused(
            message,
            "give shares of less than 1 together, such as `--validation 0.05 --test 0.05`",
        ));
    }
    let described = CorpusIndex::NAME;
    let before = match out.join(described).exists() {
        true => Some(CorpusIndex::read(&out.join(described))?),
        false => None,
    };
    let partial: Option<Partial> = match out.join(PARTIAL).exists() {
        true => Some(read_json(&out.join(PARTIAL))?),
        false => None,
    };
    if before.is_none() && partial.is_none() && has_other_files(out)? {
        let message = format!("`{}` has files that are not tokens", out.display());
        return Err(refused(message, "choose a folder that is new or empty with `--out`"));
    }
    // A missing one is trained again, with the same result.
    let trained = (before.is_some() || partial.is_some()) && out.join(TOKENIZER).exists();
    let tokenizer = match (&options.tokenizer, trained) {
        (TokenizerSource::Train { .. }, true) => TextTokenizer::open(&out.join(TOKENIZER), false)?,
        (source, _) => source.tokenizer(&options.text, &mut |n| progress(TokenizeProgress::Training(n)))?,
    };
    let recipe = recipe(options, &tokenizer)?;
    if let Some(of) = before.as_ref().map(|i| &i.made_from).or(partial.as_ref().map(|p| &p.recipe))
        && *of != recipe
    {
        let message =
            format!("`{}` holds tokens that were made of other files or with other options", out.display());
        return Err(refused(message, "choose another folder with `--out`, or remove this one"));
    }
    let task = options.task.unwrap_or_else(|| TaskKind::of(&tokenizer.special()));
    if let Some(index) = before {
        return Ok(done(&index, task, true));
    }
    let disk = Folder::at(out).create().map_err(|e| failed(out, e))?;
    let partial = partial.unwrap_or(Partial { recipe, sets: SortedMap::new(), documents: 0 });
    // From here on the folder is that of this recipe.
    write(&disk, PARTIAL, &json(&partial))?;
    write(&disk, TOKENIZER, tokenizer.json()?.as_bytes())?;
    let sets = Writing::new(&disk, &tokenizer, options, partial)?.run(&options.text, progress)?;
    let index = CorpusIndex {
        format: CorpusIndex::FORMAT,
        tokenizer: TOKENIZER.into(),
        vocab: tokenizer.vocab(),
        special: tokenizer.special(),
        sets: sets.sets,
        made_from: sets.recipe,
    };
    write(&disk, MANIFEST, manifest(task, index.sets.keys().map(String::as_str)).as_bytes())?;
    write(&disk, described, &json(&index))?;
    disk.remove(PARTIAL).map_err(|e| failed(&out.join(PARTIAL), e))?;
    Ok(done(&index, task, false))
}

fn done(index: &CorpusIndex, task: TaskKind, was_there: bool) -> Tokenized {
    let sets = index.sets.iter().map(|(name, set)| (name.clone(), set.totals())).collect();
    Tokenized { was_there, vocab: index.vocab, task, sets }
}

fn has_other_files(folder: &Path) -> Checked<bool> {
    match entries(folder) {
        Ok(all) => Ok(all.iter().any(|e| e.name.to_str().is_none_or(|n| !n.starts_with('.')))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed(folder, e)),
    }
}

fn recipe(options: &TokenizeOptions, tokenizer: &TextTokenizer) -> Checked<Recipe> {
    let text = &options.text;
    let stamp = |path: &PathBuf| {
        let (size, digest) = digest(path).map_err(|e| failed(path, e))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), size, digest))
    };
    Ok(Recipe {
        files: text.paths.iter().map(stamp).collect::<Checked<_>>()?,
        documents: text.rule,
        field: text.field.clone(),
        tokenizer: options.tokenizer.described(tokenizer)?,
        held_out: options.held_out,
        shard_tokens: options.shard_tokens,
    })
}

/// The size of a file and a digest of up to 64 blocks spread over it evenly: all of a file of up to 4 MiB, and of larger ones
/// enough to tell texts apart that are not made to deceive, without reading terabytes.
fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    const BLOCKS: u64 = 64;
    const BLOCK: u64 = 1 << 16;
    let file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    let mut hash = sha2::Sha256::new();
    let mut block = vec![0; BLOCK.min(size) as usize];
    for k in 0..size.div_ceil(BLOCK).min(BLOCKS) {
        let at = if size <= BLOCKS * BLOCK { k * BLOCK } else { k * ((size - BLOCK) / (BLOCKS - 1)) };
        let n = block.len().min((size - at) as usize);
        file.read_exact_at(&mut block[..n], at)?;
        hash.update(&block[..n]);
    }
    Ok((size, hash.finalize()[..8].iter().map(|b| format!("{b:02x}")).collect()))
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

fn write(disk: &Folder, name: &str, bytes: &[u8]) -> Checked<()> {
    write_durably(disk, name, &[bytes]).map_err(|e| failed(&disk.path().join(name), e))
}

/// The sets that are being written.
struct Writing<'a> {
    disk: &'a Folder,
    tokenizer: &'a TextTokenizer,
    end: Option<u32>,
    held_out: (f64, f64),
    shard_tokens: u64,
    sets: SortedMap<&'static str, ShardWriter>,
    recipe: Recipe,
    /// Documents that need not be read again.
    skipped: u64,
    /// Whether tokens of the current document have been added.
    within: bool,
}

impl<'a> Writing<'a> {
    fn new(
        disk: &'a Folder,
        tokenizer: &'a TextTokenizer,
        options: &TokenizeOptions,
        mut partial: Partial,
    ) -> Checked<Writing<'a>> {
        let shares = [("train", 1.0), ("validation", options.held_out.0), ("test", options.held_out.1)];
        let mut writer = |name: &'static str| {
            let index = partial.sets.remove(name).unwrap_or_default();
            (name, ShardWriter::new(disk.clone(), name, tokenizer.vocab(), index))
        };
        let sets = shares.into_iter().filter(|s| s.1 > 0.0).map(|s| writer(s.0)).collect();
        let special = tokenizer.special();
        Ok(Writing {
            disk,
            tokenizer,
            // Separators between parts of a task's examples are not written.
            end: special.end.filter(|end| special.sep != Some(*end)),
            held_out: options.held_out,
            shard_tokens: options.shard_tokens,
            sets,
            recipe: partial.recipe,
            skipped: partial.documents,
            within: false,
        })
    }

    fn run(mut self, text: &TextFiles, progress: &mut dyn FnMut(TokenizeProgress)) -> Checked<Partial> {
        let mut parts = text.parts();
        if self.skipped > 0 {
            let mut ends = 0;
            while ends < self.skipped
                && let Some(part) = parts.next().transpose()?
            {
                ends += u64::from(part.ends);
            }
            progress(TokenizeProgress::Resumed(self.skipped));
        }
        let (mut read, mut open) = (self.skipped, 0);
        let (mut tokens, mut bytes) = (0, 0);
        loop {
            let batch = next_batch(&mut parts)?;
            let ends = batch.is_empty();
            for (part, of_it) in batch.iter().zip(encode_all(self.tokenizer, &batch)?) {
                let added = self.add(read, of_it, part)?;
                (read, open, tokens) = (read + u64::from(part.ends), open + added, tokens + added);
                if open >= self.shard_tokens && part.ends {
                    self.commit(read)?;
                    open = 0;
                }
            }
            if ends {
                break;
            }
            bytes += batch.iter().map(|p| p.as_ref().len() as u64).sum::<u64>();
            progress(TokenizeProgress::Tokenizing([read, tokens, bytes]));
        }
        let partial = self.commit(read)?;
        match partial.sets.iter().find(|s| s.1.shards.is_empty()) {
            Some((set, _)) if read == 0 => {
                Err(refused(format!("the files have no document for `{set}`"), "name files with text"))
            }
            Some((set, _)) => {
                let message = format!("of {read} documents none fell to `{set}`");
                let help = "give a larger share, or cut the text into more documents with `--documents`";
                Err(refused(message, help))
            }
            None => Ok(partial),
        }
    }

    /// Adds a part of document number `number`; gives how many tokens that were.
    fn add(&mut self, number: u64, mut tokens: Vec<u32>, part: &DocumentPart) -> Checked<u64> {
        let share = uniform01(Key::new(0, "held-out documents"), number);
        let (validation, test) = self.held_out;
        let set = match share {
            s if s < validation => "validation",
            s if s < validation + test => "test",
            _ => "train",
        };
        let goes_on = self.within;
        self.within |= !tokens.is_empty();
        if part.ends && std::mem::take(&mut self.within) {
            tokens.extend(self.end);
        }
        if let Some(writer) = self.sets.get_mut(set) {
            writer.add(&tokens, part.as_ref().len(), goes_on)?;
        }
        Ok(tokens.len() as u64)
    }

    /// Ends all shards, and notes that `documents` documents need not be read again.
    fn commit(&mut self, documents: u64) -> Checked<Partial> {
        let mut sets = SortedMap::new();
        for (name, writer) in &mut self.sets {
            writer.close()?;
            sets.insert(name.to_string(), writer.index().clone());
        }
        let partial = Partial { recipe: self.recipe.clone(), sets, documents };
        write(self.disk, PARTIAL, &json(&partial))?;
        Ok(partial)
    }
}

/// Parts of documents that keep all cores busy.
fn next_batch(parts: &mut DocumentParts<'_>) -> Checked<Vec<DocumentPart>> {
    let (mut batch, mut size) = (Vec::new(), 0);
    while size < BATCH.max(rayon::current_num_threads() << 20) {
        let Some(part) = parts.next().transpose()? else { break };
        size += part.as_ref().len();
        batch.push(part);
    }
    Ok(batch)
}

/// The tokens of each of some documents, by all cores.
pub(crate) fn encode_all(tokenizer: &TextTokenizer, documents: &[impl AsRef<str>]) -> Checked<Vec<Vec<u32>>> {
    let pieces: Vec<(usize, &str)> = documents
        .iter()
        .map(AsRef::as_ref)
        .enumerate()
        .flat_map(|(i, d)| pieces(d).into_iter().map(move |p| (i, p)))
        .collect();
    let encoded: Vec<Result<Vec<u32>, String>> =
        pieces.par_iter().map(|(_, piece)| tokenizer.encode(piece)).collect();
    let mut out = vec![Vec::new(); documents.len()];
    for ((document, _), tokens) in pieces.iter().zip(encoded) {
        let tokens = tokens.map_err(|why| {
            refused(format!("the text cannot be tokenized: {why}"), "name another tokenizer")
        })?;
        out[*document].extend(tokens);
    }
    Ok(out)
}
