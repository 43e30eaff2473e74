//! Sources of a tokenizer: a file, or text on which it is trained.

use super::document_split::pieces;
use super::documents::{DocumentPart, TextFiles};
use super::refused;
use super::tokenizer::{BERT_SPECIAL, TextTokenizer};
use meshwright_files::Checked;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, Tokenizer,
};

/// Kind of a trained tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// Byte pairs, as GPT-2 has them: any text comes back from its tokens.
    Bpe,
    /// Word pieces, as BERT has them: in small letters.
    WordPiece,
}

/// Source of a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenizerSource {
    /// A file.
    File {
        /// `tokenizer.json`, or a list of word pieces.
        path: PathBuf,
        /// Whether a list of word pieces is case-sensitive.
        cased: bool,
    },
    /// Trained on the text.
    Train {
        /// The kind.
        kind: TokenizerKind,
        /// Number of tokens.
        vocab: usize,
        /// Number of `<extra_id_…>` tokens, which stand for hidden spans.
        sentinels: usize,
        /// Whether word pieces are case-sensitive.
        cased: bool,
    },
}

/// Bytes at the beginning of the text on which a tokenizer is trained: more change little, and pairs are counted in 32
/// bits.
const TRAINED_ON: usize = 256 << 20;

/// Text that is cut into words together.
const BATCH: usize = 4 << 20;

/// The most characters of a word that byte pairs are counted in: longer ones, which are no words, are counted in parts. Joining
/// pairs takes the square of it.
const LONGEST_WORD: usize = 32;

/// The most characters of a word that has word pieces.
const LONGEST_OF_PIECES: usize = 100;

/// The most characters of which word pieces begin; rarer ones are unknown.
const MOST_CHARACTERS: usize = 1000;

impl TokenizerSource {
    /// Reads or trains it. `progress` gets the number of bytes read.
    ///
    /// # Errors
    /// E0502 for files that cannot be read, E0508 for a size that is too small.
    pub fn tokenizer(&self, text: &TextFiles, progress: &mut dyn FnMut(u64)) -> Checked<TextTokenizer> {
        match self {
            TokenizerSource::File { path, cased } => TextTokenizer::open(path, *cased),
            TokenizerSource::Train { kind, vocab, sentinels, cased } => {
                train(*kind, (*vocab, *sentinels), *cased, text, progress)
            }
        }
    }

    /// Text of the recipe that identifies it.
    pub(super) fn described(&self, read: &TextTokenizer) -> Checked<String> {
        use sha2::Digest;
        Ok(match self {
            TokenizerSource::File { .. } => {
                let digest = sha2::Sha256::digest(read.json()?.as_bytes());
                digest[..8].iter().map(|b| format!("{b:02x}")).collect()
            }
            TokenizerSource::Train { .. } => format!("{self:?}"),
        })
    }
}

fn train(
    kind: TokenizerKind,
    (vocab, sentinels): (usize, usize),
    cased: bool,
    text: &TextFiles,
    progress: &mut dyn FnMut(u64),
) -> Checked<TextTokenizer> {
    if cased && kind == TokenizerKind::Bpe {
        return Err(refused("byte pairs always tell capitals from small letters", "leave out `--cased`"));
    }
    let mut special: Vec<String> = match kind {
        TokenizerKind::Bpe => vec!["<|endoftext|>".into(), "<pad>".into()],
        TokenizerKind::WordPiece => BERT_SPECIAL.map(String::from).to_vec(),
    };
    special.extend((0..sentinels).map(|n| format!("<extra_id_{n}>")));
    let unlearned = |e: tokenizers::Error| {
        refused(format!("the tokenizer cannot be trained: {e}"), "name one with `--tokenizer`")
    };
    let cutter = match kind {
        TokenizerKind::Bpe => {
            let mut t = Tokenizer::new(BPE::default());
            let bytes = ByteLevel::new(false, true, true);
            t.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
            TextTokenizer::new(t)
        }
        // Its words do not depend on its pieces.
        TokenizerKind::WordPiece => {
            TextTokenizer::bert(model_of(&special), cased).map_err(|e| unlearned(e.into()))?
        }
    };
    let mut words = count_words(&cutter, text, progress)?;
    if words.is_empty() {
        return Err(refused("the files have no text to train a tokenizer on", "name files with text"));
    }
    let mut first = special.clone();
    if kind == TokenizerKind::WordPiece {
        first.extend(word_piece_alphabet(&mut words));
    } else {
        words = in_parts(words);
        first.extend(
            ByteLevel::alphabet().into_iter().collect::<BTreeSet<char>>().into_iter().map(String::from),
        );
    }
    if vocab <= first.len() {
        let message = format!(
            "`--vocab {vocab}` is too small: special tokens and single characters alone are {}",
            first.len()
        );
        return Err(refused(
            message,
            format!("give more than {}, such as `--vocab {}`", first.len(), first.len() * 4),
        ));
    }
    // Given tokens come first, in this order: the trainer would number those that it finds in words in the order of a hash.
    let given = first.iter().map(|t| AddedToken::from(t.as_str(), false)).collect();
    let mut trainer =
        BpeTrainer::builder().vocab_size(vocab).show_progress(false).min_frequency(2).special_tokens(given);
    if kind == TokenizerKind::WordPiece {
        trainer = trainer.continuing_subword_prefix("##".into());
    }
    let counts = words.iter().map(|(word, n)| (word.as_str().into(), *n)).collect();
    let mut model = BPE::default();
    trainer.build().do_train(&counts, &mut model).map_err(unlearned)?;
    let mut inner = match kind {
        TokenizerKind::Bpe => {
            let mut inner = cutter.inner().clone();
            inner.with_model(model);
            inner
        }
        TokenizerKind::WordPiece => TextTokenizer::bert(WordPiece::from_bpe(&model), cased)
            .map_err(|e| unlearned(e.into()))?
            .inner()
            .clone(),
    };
    let added: Vec<AddedToken> = special.iter().map(|t| AddedToken::from(t.as_str(), true)).collect();
    inner.add_special_tokens(&added);
    // As a reader of its file has it: what is written is what is used.
    let json = inner.to_string(false).map_err(unlearned)?;
    Ok(TextTokenizer::new(Tokenizer::from_bytes(json).map_err(unlearned)?))
}

/// Word pieces that are these tokens alone.
fn model_of(tokens: &[String]) -> WordPiece {
    let vocab = tokens.iter().zip(0u32..).map(|(t, id)| (t.clone(), id)).collect();
    WordPiece::from_bpe(&BPE::new(vocab, Vec::new()))
}

/// Number of occurrences of each word, in the tokenizer's own form.
fn count_words(
    cutter: &TextTokenizer,
    text: &TextFiles,
    progress: &mut dyn FnMut(u64),
) -> Checked<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    let (mut seen, mut batch, mut size) = (0, Vec::new(), 0);
    let mut parts = text.parts();
    loop {
        let next = if seen + size < TRAINED_ON { parts.next().transpose()? } else { None };
        let ends = next.is_none();
        if let Some(part) = next {
            size += part.as_ref().len();
            batch.push(part);
        }
        if size < BATCH && !ends {
            continue;
        }
        let counted: Vec<Result<HashMap<String, u64>, String>> = batch
            .par_chunks(batch.len().div_ceil(64).clamp(1, 16))
            .map(|some| words_of(cutter.inner(), some))
            .collect();
        for counts in counted {
            let counts = counts.map_err(|why| {
                refused(format!("the text cannot be cut into words: {why}"), "mend the text")
            })?;
            // In any order: they are added up.
            #[allow(clippy::iter_over_hash_type, reason = "sums do not depend on the order")]
            for (word, n) in counts {
                *all.entry(word).or_default() += n;
            }
        }
        (seen, size) = (seen + size, 0);
        batch.clear();
        progress(seen as u64);
        if ends {
            return Ok(all);
        }
    }
}

/// Words of at most [`LONGEST_WORD`] characters.
fn in_parts(words: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for (word, n) in words {
        let mut rest = word.as_str();
        while let Some((end, _)) = rest.char_indices().nth(LONGEST_WORD) {
            let (part, more) = rest.split_at(end);
            *out.entry(part.to_string()).or_default() += n;
            rest = more;
        }
        *out.entry(rest.to_string()).or_default() += n;
    }
    out
}

fn words_of(cutter: &Tokenizer, documents: &[DocumentPart]) -> Result<HashMap<String, u64>, String> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for piece in documents.iter().flat_map(|d| pieces(d.as_ref())) {
        let mut text = NormalizedString::from(piece);
        if let Some(n) = cutter.get_normalizer() {
            n.normalize(&mut text).map_err(|e| e.to_string())?;
        }
        let mut text = PreTokenizedString::from(text);
        if let Some(p) = cutter.get_pre_tokenizer() {
            p.pre_tokenize(&mut text).map_err(|e| e.to_string())?;
        }
        for (word, ..) in text.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match counts.get_mut(word) {
                Some(n) => *n += 1,
                None => drop(counts.insert(word.to_string(), 1)),
            }
        }
    }
    Ok(counts)
}

/// The characters with which word pieces begin, and those with which they go on. Words with rarer characters, and longer
/// ones than have pieces, are taken out.
fn word_piece_alphabet(words: &mut BTreeMap<String, u64>) -> Vec<String> {
    let mut counts: BTreeMap<char, u64> = BTreeMap::new();
    for (word, n) in words.iter() {
        word.chars().for_each(|c| *counts.entry(c).or_default() += n);
    }
    let mut by_count: Vec<(u64, char)> = counts.into_iter().map(|(c, n)| (n, c)).collect();
    by_count.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let known: BTreeSet<char> = by_count.into_iter().take(MOST_CHARACTERS).map(|c| c.1).collect();
    let fits = |word: &str| word.chars().count() <= LONGEST_OF_PIECES;
    words.retain(|word, _| fits(word) && word.chars().all(|c| known.contains(&c)));
    let going_on: BTreeSet<char> = words.keys().flat_map(|w| w.chars().skip(1)).collect();
    known.iter().map(char::to_string).chain(going_on.iter().map(|c| format!("##{c}"))).collect()
}
