//! A tokenizer: text in, tokens out, and what is known of each token.

use super::index::SpecialTokens;
use super::tokenizer_check::check;
use super::{failed, refused};
use crate::Bytes;
use crate::catch::catch;
use meshwright_files::Checked;
use meshwright_files::folder::Folder;
use meshwright_files::folder::holds_run;
use rustix::fs::OFlags;
use std::io::Read;
use std::path::{Path, PathBuf};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, DecoderWrapper, Tokenizer, decoders};

/// The largest file of a tokenizer.
const MOST_BYTES: u64 = 1 << 28;

/// Tokens are below this: tables have an entry for each.
const MOST_TOKENS: usize = 1 << 26;

/// The special tokens of BERT, in the order in which a new vocabulary has them.
pub(super) const BERT_SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// A tokenizer.
#[derive(Debug)]
pub struct TextTokenizer {
    inner: Tokenizer,
    /// Its `tokenizer.json`, where the library would print to standard output that some numbers have no token.
    text: Option<String>,
    /// Its file, where it has one.
    file: Option<PathBuf>,
}

/// A text that a tokenizer is tried with when it is opened.
const TRIED: &str = "In 1 beginning, é — 中文 🙂\n  the end.";

impl TextTokenizer {
    /// Reads a `tokenizer.json`, or BERT's list of word pieces (`.txt`, one a line); either may be gzipped. `cased` is for lists:
    /// they do not say whether text is made lower case.
    ///
    /// # Errors
    /// E0502 where the file cannot be read or is neither, E0508 for a `tokenizer.json` that is said to be cased.
    pub fn open(path: &Path, cased: bool) -> Checked<TextTokenizer> {
        Ok(Self::open_with_text(path, cased)?.0)
    }

    /// The same, with the text of the `tokenizer.json` that it was read from: a second look at the file could find another.
    ///
    /// # Errors
    /// Those of [`TextTokenizer::open`].
    pub fn open_with_text(path: &Path, cased: bool) -> Checked<(TextTokenizer, Option<String>)> {
        let mut bytes = Vec::new();
        let file = bytes_of(path).map_err(|why| failed(path, why))?;
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|e| failed(path, e))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.strip_suffix(".gz").unwrap_or(&name).ends_with(".txt") {
            let text = String::from_utf8(bytes).map_err(|_| failed(path, "it is not UTF-8"))?;
            let read = Self::of_word_pieces(&text, cased).map_err(|why| failed(path, why))?;
            return Ok((read, None));
        }
        if cased {
            let message =
                format!("whether `{}` tells capitals from small letters is written in it", path.display());
            return Err(refused(message, "leave out `cased`, which is for lists of word pieces"));
        }
        let read = Self::of_json(&bytes).and_then(|t| {
            let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_string())?;
            Ok((TextTokenizer { file: Some(path.into()), ..t }, Some(text)))
        });
        read.map_err(|why| {
            (*failed(path, why))
                .help(
                    "name a `tokenizer.json` of Hugging Face's, or a list of word pieces that ends in `.txt`",
                )
                .into()
        })
    }

    fn of_json(bytes: &[u8]) -> Result<TextTokenizer, String> {
        let mut value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|e| format!("it is no JSON: {e}"))?;
        if value.get("model").is_none() {
            return Err("it has no `model`: it is not the file of a tokenizer".into());
        }
        check(&value)?;
        let read = catch(|| Tokenizer::from_bytes(bytes).map(Self::new).map_err(|e| e.to_string()));
        let mut read = read.map_err(odd)??;
        // Whether it has a token for each part of the text is not asked.
        catch(|| drop(read.inner.encode_fast(TRIED, false))).map_err(odd)?;
        match read.vocab() {
            n if n > MOST_TOKENS => {
                return Err(format!("it numbers its tokens up to {}, more than {MOST_TOKENS}", n - 1));
            }
            _ => {}
        }
        let own = read.inner.get_vocab(false);
        if own.values().max().is_some_and(|max| *max as usize >= own.len()) {
            // As `new` has it.
            (value["truncation"], value["padding"]) = (serde_json::Value::Null, serde_json::Value::Null);
            read.text = serde_json::to_string_pretty(&value).ok();
        }
        Ok(read)
    }

    /// BERT's tokenizer with these word pieces.
    fn of_word_pieces(text: &str, cased: bool) -> Result<TextTokenizer, String> {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        for wanted in BERT_SPECIAL {
            if !lines.contains(&wanted) {
                return Err(format!("it has no line `{wanted}`: it is not a list of BERT's word pieces"));
            }
        }
        let mut seen = std::collections::BTreeMap::new();
        for (i, piece) in lines.iter().enumerate() {
            if let Some(before) = seen.insert(*piece, i) {
                return Err(format!("its lines {} and {} are both `{piece}`", before + 1, i + 1));
            }
        }
        let vocab: serde_json::Map<_, _> = seen.iter().map(|(p, id)| (p.to_string(), (*id).into())).collect();
        let model = serde_json::json!({
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        });
        let model = WordPiece::from_bytes(model.to_string()).map_err(|e| e.to_string())?;
        Self::bert(model, cased)
    }

    /// BERT's way to cut text into words around a list of word pieces, which has [`BERT_SPECIAL`].
    pub(super) fn bert(model: WordPiece, cased: bool) -> Result<TextTokenizer, String> {
        let mut inner = Tokenizer::new(model);
        inner.with_normalizer(Some(BertNormalizer::new(true, true, None, !cased)));
        inner.with_pre_tokenizer(Some(BertPreTokenizer));
        inner.with_decoder(Some(decoders::wordpiece::WordPiece::default()));
        let id = |token: &str| inner.token_to_id(token).ok_or(format!("`{token}` is missing"));
        let (sep, cls) = (id("[SEP]")?, id("[CLS]")?);
        inner.with_post_processor(Some(BertProcessing::new(("[SEP]".into(), sep), ("[CLS]".into(), cls))));
        let special: Vec<AddedToken> = BERT_SPECIAL.iter().map(|t| AddedToken::from(*t, true)).collect();
        inner.add_special_tokens(&special);
        Ok(Self::new(inner))
    }

    pub(super) fn new(mut inner: Tokenizer) -> TextTokenizer {
        // A length is the task's to choose, and text that looks like a special token is text.
        let _ = inner.with_truncation(None);
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        TextTokenizer { inner, text: None, file: None }
    }

    /// What is wrong with it, with its file.
    fn place(&self, why: &str) -> String {
        self.file.as_ref().map_or(why.to_string(), |file| format!("`{}`: {why}", file.display()))
    }

    pub(super) fn inner(&self) -> &Tokenizer {
        &self.inner
    }

    /// Its `tokenizer.json`.
    pub fn json(&self) -> Checked<String> {
        if let Some(text) = &self.text {
            return Ok(text.clone());
        }
        self.inner
            .to_string(true)
            .map_err(|e| refused(format!("the tokenizer cannot be written: {e}"), "name another one"))
    }

    /// The tokens of a text, without any that are added before or after it.
    ///
    /// # Errors
    /// Why it has none.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoded = catch(|| self.inner.encode_fast(text, false).map_err(|e| e.to_string()));
        let encoded = encoded.map_err(|why| self.place(&odd(why)))??;
        Ok(encoded.get_ids().to_vec())
    }

    /// The text of some tokens, without special ones.
    ///
    /// # Errors
    /// E0508 where its decoder cannot join them.
    pub fn decode(&self, tokens: &[u32]) -> Checked<String> {
        let joined = catch(|| self.inner.decode(tokens, true).map_err(|e| e.to_string()));
        joined.unwrap_or_else(|why| Err(self.place(&odd(why)))).map_err(|e| {
            refused(format!("tokens cannot become text: {e}"), "mend the `decoder` of the tokenizer")
        })
    }

    /// The token that is written so.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Tokens are below this.
    pub fn vocab(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// The tokens with a meaning of their own, found by the names that they have in common tokenizers.
    pub fn special(&self) -> SpecialTokens {
        let first = |names: &[&str]| names.iter().find_map(|n| self.inner.token_to_id(n));
        let sentinel = |n: usize| self.inner.token_to_id(&format!("<extra_id_{n}>"));
        let sentinels: Vec<u32> = (0..).map_while(sentinel).collect();
        let added = self.inner.get_added_tokens_decoder();
        let mut all: Vec<u32> = added.into_iter().filter(|(_, t)| t.special).map(|(id, _)| id).collect();
        all.extend(&sentinels);
        all.sort_unstable();
        all.dedup();
        let mask = first(&["[MASK]", "<mask>"]);
        // Where nothing is hidden, `</s>` ends a document and separates nothing.
        let around = |names: &[&str]| mask.and_then(|_| first(names));
        SpecialTokens {
            pad: first(&["[PAD]", "<pad>", "<|pad|>", "<|padding|>"]),
            end: first(&["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"]),
            cls: around(&["[CLS]", "<s>"]),
            sep: around(&["[SEP]", "</s>"]),
            mask,
            sentinels,
            all,
        }
    }

    /// For each token, whether a word goes on with it: `##ing` of word pieces; a letter or digit without the mark of a space
    /// before it elsewhere.
    pub(crate) fn continues_word(&self) -> Vec<bool> {
        let spaces = ['Ġ', 'Ċ', 'ĉ', '▁', ' '];
        let word_pieces = matches!(self.inner.get_decoder(), Some(DecoderWrapper::WordPiece(_)));
        let continues = |token: &str| match word_pieces {
            true => token.starts_with("##") && token.len() > 2,
            false => !token.starts_with(spaces) && token.starts_with(char::is_alphanumeric),
        };
        self.table(|token| continues(token))
    }

    /// For each token how many bytes of text it stands for, special ones none. `None` where only bytes in whole would say, as
    /// with word pieces, from which spaces and capitals are lost.
    pub(crate) fn byte_lengths(&self) -> Option<Vec<u16>> {
        let special = self.special().all;
        let mut lengths = match self.inner.get_decoder() {
            // Each character of such a token stands for a byte.
            Some(DecoderWrapper::ByteLevel(_)) => self.table(|token| token.chars().count().min(65535) as u16),
            _ => return None,
        };
        special.iter().for_each(|id| lengths[*id as usize] = 0);
        Some(lengths)
    }

    fn table<T: Clone + Default>(&self, of: impl Fn(&str) -> T) -> Vec<T> {
        let mut out = vec![T::default(); self.vocab()];
        let vocabulary: std::collections::BTreeMap<String, u32> =
            self.inner.get_vocab(true).into_iter().collect();
        vocabulary.iter().for_each(|(token, id)| out[*id as usize] = of(token));
        out
    }
}

/// The content of its file, of which one in a run's folder may be no link.
fn bytes_of(path: &Path) -> Result<Bytes, String> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if holds_run(folder) => {
            let file = Folder::at(folder).file(name, OFlags::RDONLY).map_err(|e| e.to_string())?;
            Bytes::of_file(file, path)
        }
        _ => Bytes::open(path),
    }
}

/// What a panic of the library says of a tokenizer.
fn odd(panic: String) -> String {
    format!("the library `tokenizers` cannot work with it: {panic}")
}
