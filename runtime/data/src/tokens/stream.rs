//! The tokens of a set, one document after the other, and where each document begins.

use crate::InputBinding;
use crate::corpus::{
    CorpusIndex, LabeledTexts, PairForm, SetIndex, SpecialTokens, TextFiles, TextTokenizer, encode_kept,
};
use crate::dataset::input_info::{InputInfo, RangeOf};
use crate::readers::array::{Elem, TensorFile};
use crate::readers::bytes::ReadError;
use crate::readers::file_piece;
use crate::readers::file_piece::{FilePiece, Location, read_span};
use crate::readers::formats;
use crate::source::FileRef;
use crate::tokens::task::{TaskKind, TokenFiles, TokenSource};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::{DType, InputDecl};
use std::path::{Path, PathBuf};

/// The tokens of a set.
#[derive(Debug)]
pub(super) struct TokenStream {
    /// Name of its source, for messages.
    pub(super) name: String,
    /// The file of the tokenizer.
    pub(super) tokenizer: PathBuf,
    /// Tokens are below this.
    pub(super) vocab: usize,
    pub(super) special: SpecialTokens,
    /// Where each document begins.
    pub(super) starts: Vec<usize>,
    /// Number of tokens.
    pub(super) len: usize,
    /// The class of each document, where it is asked for.
    pub(super) labels: Vec<i32>,
    /// The form in which documents are joined, where each two of them are an example to classify.
    pub(super) pair: Option<PairForm>,
    described: InputInfo,
    pieces: Vec<FilePiece>,
}

impl TokenStream {
    /// Opens shards, or tokenizes text.
    ///
    /// # Errors
    /// E0502 for files that cannot be read or do not fit their index, E0508 for an index without the set.
    pub(super) fn open(source: &TokenSource, labeled: bool, binding: &InputBinding) -> Checked<TokenStream> {
        let classify = source.task.kind == TaskKind::Classify;
        match &source.files {
            TokenFiles::Shards { index, .. } if labeled => {
                let message = format!("`{}` has tokens, and no classes of its documents", index.display());
                let help = "name the files in place of the index: `text = \"FILE.csv\"`, or give the input a file of its own";
                Err(Box::new(Diagnostic::error(codes::E0508, message).help(help)))
            }
            TokenFiles::Shards { index, set } => Self::of_shards(index, set, binding),
            TokenFiles::Text { files, tokenizer, cased, documents, field, second } => {
                let second = second.clone();
                let text = TextFiles { second, ..TextFiles::new(files, *documents, field)? };
                let texts = match classify {
                    true => text.labeled(labeled.then_some(&source.labels))?,
                    false => {
                        let texts = text.documents().collect::<Checked<Vec<String>>>()?;
                        LabeledTexts { texts, labels: Vec::new() }
                    }
                };
                Self::of_text(&text, texts, (tokenizer, *cased), classify)
            }
        }
    }

    fn of_shards(path: &Path, set: &str, binding: &InputBinding) -> Checked<TokenStream> {
        let index = CorpusIndex::read(path)?;
        let Some(shards) = index.sets.get(set) else {
            let names: Vec<&str> = index.sets.keys().map(String::as_str).collect();
            let message = format!("`{}` has no set `{set}`", path.display());
            let help = format!("it has {}: name one with `set`", meshwright_files::text::listed(&names));
            return Err(Box::new(Diagnostic::error(codes::E0508, message).help(help)));
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let described = described(index.vocab);
        // Sizes are those of files from here on.
        let pieces = shard_pieces(folder, shards, &described, binding)?;
        let (mut starts, mut len) = (Vec::new(), 0);
        for shard in &shards.shards {
            let documents =
                document_starts(&folder.join(&shard.documents), shard.document_count, shard.token_count)?;
            starts.extend(documents.iter().map(|s| len + s));
            len += shard.token_count as usize;
        }
        Ok(TokenStream {
            name: format!("`{}`", path.display()),
            tokenizer: folder.join(&index.tokenizer),
            vocab: index.vocab,
            special: index.special,
            starts,
            len,
            labels: Vec::new(),
            pair: None,
            described,
            pieces,
        })
    }

    /// The tokens of texts: of all texts with `all`, otherwise of those that have tokens.
    fn of_text(
        text: &TextFiles,
        LabeledTexts { texts, labels }: LabeledTexts,
        (tokenizer, cased): (&Path, bool),
        all: bool,
    ) -> Checked<TokenStream> {
        let tokenize = TextTokenizer::open(tokenizer, cased)?;
        let special = tokenize.special();
        let pair = text.second.as_ref().map(|_| tokenize.pair_form()).transpose()?;
        let end = special.end.filter(|end| special.sep != Some(*end) && pair.is_none());
        let (mut starts, mut data): (_, Vec<u8>) = (Vec::new(), Vec::new());
        for tokens in encode_kept(&tokenize, &texts)?.into_iter().filter(|t| all || !t.is_empty()) {
            starts.push(data.len() / 4);
            data.extend(tokens.into_iter().chain(end).flat_map(|t| (t as i32).to_le_bytes()));
        }
        let path = text.paths.first().cloned().unwrap_or_default();
        let name = format!("`{}`", path.display());
        let len = data.len() / 4;
        let file = FileRef { path, parts: Vec::new(), classes: Vec::new() };
        let vocab = tokenize.vocab();
        Ok(TokenStream {
            name,
            tokenizer: tokenizer.to_path_buf(),
            vocab,
            special,
            starts,
            len,
            labels,
            pair,
            described: described(vocab),
            pieces: vec![FilePiece { file, start: 0, len, held: Location::Memory(data) }],
        })
    }

    /// Some of the tokens; an error is one of example `record`.
    pub(super) fn read(&self, range: std::ops::Range<usize>, record: usize) -> Checked<Vec<i32>> {
        let (mut out, mut raw) = (vec![0; range.len() * 4], Vec::new());
        read_span(&self.pieces, &self.described, (record, range.start), &mut out, &mut raw)?;
        Ok(out.chunks_exact(4).map(|b| i32::from_le_bytes(meshwright_files::tensor::array(b))).collect())
    }

    /// The document of a token, and where that document ends.
    pub(super) fn document_at(&self, token: usize) -> (usize, usize) {
        let document = self.starts.partition_point(|s| *s <= token).saturating_sub(1);
        (document, self.end_of(document))
    }

    /// Where a document ends.
    pub(super) fn end_of(&self, document: usize) -> usize {
        self.starts.get(document + 1).copied().unwrap_or(self.len)
    }
}

/// The tokens as messages call them.
fn described(vocab: usize) -> InputInfo {
    InputInfo {
        name: "tokens".into(),
        dtype: DType::I32,
        range: Some((RangeOf::Vocabulary, vocab)),
        ignored: None,
    }
}

fn unreadable(path: &Path, why: impl std::fmt::Display) -> Box<Diagnostic> {
    let message = format!("`{}` cannot be read as token shards: {why}", path.display());
    let help = "fetch it again, or make the folder again with `meshwright data tokenize`";
    Box::new(Diagnostic::error(codes::E0502, message).help(help))
}

fn open_array(path: &Path) -> Checked<TensorFile> {
    let decl = InputDecl { name: "tokens".into(), dims: Vec::new(), dtype: DType::I32, range: None };
    let file = FileRef { path: path.to_path_buf(), parts: Vec::new(), classes: Vec::new() };
    formats::open(&file, &decl).map_err(|e| unreadable(path, e.why))
}

/// The shards, in memory or in place.
fn shard_pieces(
    folder: &Path,
    set: &SetIndex,
    described: &InputInfo,
    binding: &InputBinding,
) -> Checked<Vec<FilePiece>> {
    let mut opened = Vec::new();
    for shard in &set.shards {
        let path = folder.join(&shard.tokens);
        let file = open_array(&path)?;
        if file.header.shape != [shard.token_count as usize] {
            let why =
                format!("it has {:?} tokens, but its index says {}", file.header.shape, shard.token_count);
            return Err(unreadable(&path, why));
        }
        if !matches!(file.header.elem, Elem::U16 | Elem::U32) {
            return Err(unreadable(
                &path,
                format!("its tokens are `{}`, not `u16` or `u32`", file.header.elem.name()),
            ));
        }
        opened.push((FileRef { path, parts: Vec::new(), classes: Vec::new() }, file));
    }
    file_piece::hold(opened, 1, described, binding)
}

/// Starts of the documents of a shard, checked.
fn document_starts(path: &Path, count: u64, tokens: u64) -> Checked<Vec<usize>> {
    let TensorFile { header, elements } = open_array(path)?;
    if header.elem != Elem::U64 || header.shape != [count as usize] {
        let why = format!(
            "it has {:?} numbers of `{}`, but its index says {count} of `u64`",
            header.shape,
            header.elem.name()
        );
        return Err(unreadable(path, why));
    }
    let mut starts: Vec<u64> = Vec::new();
    let read = elements.each(|piece| {
        starts.extend(piece.chunks_exact(8).map(|b| u64::from_le_bytes(meshwright_files::tensor::array(b))));
        Ok(())
    });
    read.map_err(|e| match e {
        ReadError::Unreadable(why) => unreadable(path, why),
        ReadError::Said(d) => d,
    })?;
    let ascend = starts.windows(2).all(|w| w[0] < w[1]);
    if starts.first() != Some(&0) || !ascend || starts.last().is_some_and(|s| *s >= tokens) {
        return Err(unreadable(
            path,
            format!("where its documents begin is not 0 and ascending to below {tokens}"),
        ));
    }
    Ok(starts.into_iter().map(|s| s as usize).collect())
}
