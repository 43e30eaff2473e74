//! The options of `data`.

use super::FormatArgs;
use crate::value_parsers;
use clap::{Args, Subcommand, ValueEnum};
use meshwright_data::TaskKind;
use meshwright_data::corpus::{DocumentRule, TextFiles, TokenizeOptions, TokenizerKind, TokenizerSource};
use meshwright_files::Checked;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct MakeDataArgs {
    #[command(subcommand)]
    pub(crate) what: MakeDataWhat,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MakeDataWhat {
    /// Make token shards of text, with a tokenizer that is read or trained, and the data.toml to train on them.
    #[command(after_help = "\
Examples:
  meshwright data tokenize 'books/*.txt' --train bpe --vocab 8192 --out books.tokens
  meshwright data tokenize wiki.jsonl.gz --json-field body --tokenizer tokenizer.json --validation 0.01 --out wiki
  meshwright data tokenize corpus.txt --tokenizer bert_vocab.txt --documents lines --out corpus.tokens
  meshwright train my_gpt.mw --data books.tokens

The same text and options give the same bytes. What was interrupted goes on with the same command.")]
    Tokenize(Box<TokenizeArgs>),
}

impl MakeDataWhat {
    pub(crate) fn format(&self) -> &FormatArgs {
        match self {
            MakeDataWhat::Tokenize(a) => &a.format,
        }
    }
}

/// Which tokenizer to train.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrainChoice {
    /// Byte pairs, as GPT-2 has them: any text comes back from its tokens.
    Bpe,
    /// Word pieces, as BERT has them: in small letters unless --cased.
    Wordpiece,
}

/// Where documents of plain text end.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DocumentsChoice {
    /// At blank lines.
    #[default]
    BlankLines,
    /// At the end of each line.
    Lines,
    /// At the end of the file.
    Files,
}

/// What examples are made for.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskChoice {
    /// The next token, as for GPT.
    Next,
    /// Hidden tokens, as for BERT.
    Masked,
    /// Hidden spans, as for T5.
    Spans,
}

#[derive(Args, Debug)]
pub(crate) struct TokenizeArgs {
    /// Text files, or patterns of names: plain text, or JSON lines where the name ends in .jsonl or .ndjson; gzipped or not.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The folder to write: shards, index.json, tokenizer.json and data.toml.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Where documents of plain text end.
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    pub(crate) documents: DocumentsChoice,
    /// The field of JSON lines that is the text.
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub(crate) json_field: String,
    /// The share of documents that is kept for validation.
    #[arg(long, value_name = "SHARE", value_parser = value_parsers::share)]
    pub(crate) validation: Option<f64>,
    /// The share of documents that is kept for the test set.
    #[arg(long, value_name = "SHARE", value_parser = value_parsers::share)]
    pub(crate) test: Option<f64>,
    /// Close shards after so many tokens.
    #[arg(long, value_name = "N", default_value_t = 1 << 26, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) shard_tokens: u64,
    /// The task that data.toml is written for [default: what the vocabulary has special tokens for]
    #[arg(long, value_enum)]
    pub(crate) task: Option<TaskChoice>,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArgs,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Tokenizer")]
pub(crate) struct TokenizerArgs {
    /// The tokenizer: a tokenizer.json of Hugging Face's, or BERT's list of word pieces (.txt); gzipped or not.
    #[arg(long, value_name = "FILE", required_unless_present = "train", conflicts_with = "train")]
    tokenizer: Option<PathBuf>,
    /// Train a tokenizer on the text.
    #[arg(long, value_enum, requires = "vocab", value_name = "KIND")]
    train: Option<TrainChoice>,
    /// How many tokens a trained tokenizer has.
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    vocab: Option<u32>,
    /// Add <extra_id_0> to <extra_id_N-1> to a trained tokenizer, which stand for hidden spans.
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sentinels: Option<u16>,
    /// Tell capitals from small letters, where a list of word pieces is read or word pieces are trained.
    #[arg(long)]
    cased: bool,
}

impl TokenizerArgs {
    fn source(&self) -> TokenizerSource {
        let cased = self.cased;
        match (&self.tokenizer, self.train) {
            (_, Some(kind)) => TokenizerSource::Train {
                kind: match kind {
                    TrainChoice::Bpe => TokenizerKind::Bpe,
                    TrainChoice::Wordpiece => TokenizerKind::WordPiece,
                },
                vocab: self.vocab.unwrap_or_default() as usize,
                sentinels: usize::from(self.sentinels.unwrap_or_default()),
                cased,
            },
            // One of them is required.
            (path, None) => TokenizerSource::File { path: path.clone().unwrap_or_default(), cased },
        }
    }
}

impl TokenizeArgs {
    /// What is asked for.
    pub(crate) fn options(&self) -> Checked<TokenizeOptions> {
        let rule = match self.documents {
            DocumentsChoice::BlankLines => DocumentRule::BlankLines,
            DocumentsChoice::Lines => DocumentRule::Lines,
            DocumentsChoice::Files => DocumentRule::Files,
        };
        Ok(TokenizeOptions {
            text: TextFiles::new(&self.files, rule, &self.json_field)?,
            tokenizer: self.tokenizer.source(),
            out: self.out.clone(),
            held_out: (self.validation.unwrap_or(0.0), self.test.unwrap_or(0.0)),
            shard_tokens: self.shard_tokens,
            task: self.task.map(|t| match t {
                TaskChoice::Next => TaskKind::Next,
                TaskChoice::Masked => TaskKind::Masked,
                TaskChoice::Spans => TaskKind::Spans,
            }),
        })
    }
}
