//! `index.json`, the contents of a folder of token shards. Each shard is two arrays of NumPy's: the tokens, and the
//! positions in them at which documents begin.

use super::documents::DocumentRule;
use super::failed;
use meshwright_files::Checked;
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the format.
const FORMAT: u32 = 1;

/// The largest index that is read.
const MOST_BYTES: u64 = 1 << 28;

/// The contents of a folder of token shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CorpusIndex {
    /// The version of the format.
    pub(crate) format: u32,
    /// The file of the tokenizer, in the same folder.
    pub(crate) tokenizer: String,
    /// Tokens are below this.
    pub(crate) vocab: usize,
    /// The tokens with a meaning of their own.
    pub(crate) special: SpecialTokens,
    /// By name: `train`, `validation`, `test`.
    pub(crate) sets: SortedMap<String, SetIndex>,
    /// The recipe of the shards.
    pub(crate) made_from: Recipe,
}

/// The tokens of a vocabulary that have a meaning of their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// The padding token.
    pub(crate) pad: Option<u32>,
    /// Ends a document.
    pub end: Option<u32>,
    /// Begins an example of a masked language model.
    pub(crate) cls: Option<u32>,
    /// Ends each part of one.
    pub(crate) sep: Option<u32>,
    /// Stands for a hidden token.
    pub(crate) mask: Option<u32>,
    /// Stand for hidden spans, in order.
    pub(crate) sentinels: Vec<u32>,
    /// All special tokens, these and others, ascending.
    pub(crate) all: Vec<u32>,
}

/// One set of documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SetIndex {
    /// Its shards, in order.
    pub(crate) shards: Vec<ShardIndex>,
}

/// One shard: whole documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardIndex {
    /// The file of its tokens: `u16`, or `u32` where the vocabulary is larger.
    pub(crate) tokens: String,
    /// The file of the positions at which its documents begin: `u64`, the first is 0.
    pub(crate) documents: String,
    /// Number of tokens.
    pub(crate) token_count: u64,
    /// Number of documents.
    pub(crate) document_count: u64,
    /// Bytes of their text.
    pub(crate) text_bytes: u64,
}

/// A recipe of shards: the same recipe gives the same bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    /// Names of the files, their sizes, and digests of blocks spread over them.
    pub(crate) files: Vec<(String, u64, String)>,
    /// Ends of documents in plain text.
    pub(crate) documents: DocumentRule,
    /// The field of JSON lines.
    pub(crate) field: String,
    /// Recipe of the tokenizer, or its fingerprint.
    pub(crate) tokenizer: String,
    /// The shares of documents that are held out for validation and test.
    pub(crate) held_out: (f64, f64),
    /// Number of tokens after which all shards are closed, about.
    pub(crate) shard_tokens: u64,
}

impl SetIndex {
    /// Tokens, documents and bytes of text of all shards.
    pub(crate) fn totals(&self) -> [u64; 3] {
        // A damaged index may have any numbers.
        self.shards.iter().fold([0u64; 3], |[t, d, b], s| {
            [
                t.saturating_add(s.token_count),
                d.saturating_add(s.document_count),
                b.saturating_add(s.text_bytes),
            ]
        })
    }
}

impl CorpusIndex {
    /// Its version of the format.
    pub(crate) const FORMAT: u32 = FORMAT;
    /// The name of the file.
    pub(crate) const NAME: &'static str = "index.json";

    /// Reads the index of a folder; the shards are checked against it when they are opened.
    pub(crate) fn read(path: &Path) -> Checked<CorpusIndex> {
        let index: CorpusIndex = read_json(path)?;
        if index.format != FORMAT {
            let message = format!("it is an index of format {}; format {FORMAT} is known", index.format);
            return Err(failed(path, message));
        }
        let special = &index.special;
        let named = [special.pad, special.end, special.cls, special.sep, special.mask];
        let all = named.iter().flatten().chain(&special.sentinels).chain(&special.all);
        if let Some(odd) = all.into_iter().find(|id| **id as usize >= index.vocab) {
            return Err(failed(
                path,
                format!("its special token {odd} is not below `vocab`, {}", index.vocab),
            ));
        }
        // A name leads to no other folder.
        let files = index.sets.values().flat_map(|s| &s.shards).flat_map(|s| [&s.tokens, &s.documents]);
        if let Some(odd) =
            files.chain([&index.tokenizer]).find(|f| f.contains(['/', '\\']) || f.starts_with('.'))
        {
            return Err(failed(path, format!("`{odd}` is not the name of a file in its folder")));
        }
        Ok(index)
    }
}

/// Reads a JSON file of bounded size.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Checked<T> {
    use std::io::Read;
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(MOST_BYTES).read_to_end(&mut text));
    read.map_err(|e| failed(path, e))?;
    serde_json::from_slice(&text).map_err(|e| failed(path, format!("it is damaged: {e}")))
}
