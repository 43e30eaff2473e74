//! The tasks that text is made into examples for, and the fields of their examples.

use crate::corpus::{CorpusIndex, DocumentRule, LabelRule, SpecialTokens, TextTokenizer};
use meshwright_files::Checked;
use meshwright_plan::DType;
use std::path::{Path, PathBuf};

/// The text of a set, and its task.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenSource {
    /// The text.
    pub files: TokenFiles,
    /// The task.
    pub task: TaskOptions,
    /// Classes of texts: their place and their names.
    pub labels: LabelRule,
}

/// Source of tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenFiles {
    /// Shards.
    Shards {
        /// The file that describes them.
        index: PathBuf,
        /// Its set.
        set: String,
    },
    /// Text that is tokenized when a run begins.
    Text {
        /// The files.
        files: Vec<PathBuf>,
        /// The tokenizer.
        tokenizer: PathBuf,
        /// Whether a list of word pieces is case-sensitive.
        cased: bool,
        /// Ends of documents in plain text.
        documents: DocumentRule,
        /// The field of JSON lines.
        field: String,
        /// The name of a second text, if each example is a pair.
        second: Option<String>,
    },
}

impl TokenFiles {
    /// The tokenizer of the text, or of the shards.
    ///
    /// # Errors
    ///
    /// E0502 where it cannot be read.
    pub fn tokenizer(&self) -> Checked<TextTokenizer> {
        match self {
            TokenFiles::Shards { index, .. } => {
                let folder = index.parent().unwrap_or(Path::new(""));
                TextTokenizer::open(&folder.join(CorpusIndex::read(index)?.tokenizer), false)
            }
            TokenFiles::Text { tokenizer, cased, .. } => TextTokenizer::open(tokenizer, *cased),
        }
    }
}

/// A task on text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// The next token.
    Next,
    /// Tokens that are hidden, as BERT has them.
    Masked,
    /// Spans that are hidden, as T5 has them.
    Spans,
    /// Predict the class of a text.
    Classify,
}

/// A task with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskOptions {
    /// The task.
    pub kind: TaskKind,
    /// Whether examples go on across the borders of documents, so that none is filled up.
    pub packed: bool,
    /// The share of tokens that are hidden.
    pub rate: f64,
    /// The mean length of a hidden span.
    pub span: f64,
    /// Whether all tokens of a word are hidden, or none.
    pub whole_words: bool,
    /// Whether an example is two pieces of text; in half of the examples the second follows the first.
    pub pairs: bool,
}

impl TaskKind {
    /// All of them.
    pub(super) const ALL: [TaskKind; 4] =
        [TaskKind::Next, TaskKind::Masked, TaskKind::Spans, TaskKind::Classify];

    /// As `data.toml` and the command line have it.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Next => "next",
            TaskKind::Masked => "masked",
            TaskKind::Spans => "spans",
            TaskKind::Classify => "classify",
        }
    }

    /// The task for which a vocabulary has special tokens.
    pub(crate) fn of(special: &SpecialTokens) -> TaskKind {
        match special {
            s if s.mask.is_some() => TaskKind::Masked,
            s if !s.sentinels.is_empty() => TaskKind::Spans,
            _ => TaskKind::Next,
        }
    }

    /// The names of its fields.
    pub(crate) fn fields(self) -> impl Iterator<Item = &'static str> {
        Field::ALL.into_iter().filter(move |f| f.is_of(self)).map(Field::name)
    }

    /// Its usual settings.
    pub(super) fn usual(self) -> TaskOptions {
        TaskOptions {
            kind: self,
            packed: self != TaskKind::Classify,
            rate: 0.15,
            span: 3.0,
            whole_words: false,
            pairs: false,
        }
    }
}

/// A part of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Field {
    /// The model's input.
    Token,
    /// The model's target.
    Target,
    /// True for positions whose prediction counts.
    Predicted,
    /// True for text, false for padding.
    Real,
    /// Number of a token's document within the example, from 0.
    Document,
    /// Distance of a token from the beginning of its document, or of the example.
    Position,
    /// Number of a token's text, 0 or 1.
    Segment,
    /// The decoder's input: the target, one later.
    Decoder,
    /// True for text in the decoder's input.
    DecoderReal,
    /// True if the second piece of text follows the first.
    Follows,
    /// The class of the text.
    Label,
    /// Bytes of text of a target.
    Bytes,
}

/// The dim of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The input's positions.
    Input,
    /// The decoder's positions.
    Decoder,
    /// An example has one.
    Example,
}

impl Field {
    /// All of them.
    pub(in super::super) const ALL: [Field; 12] = [
        Field::Token,
        Field::Target,
        Field::Predicted,
        Field::Real,
        Field::Document,
        Field::Position,
        Field::Segment,
        Field::Decoder,
        Field::DecoderReal,
        Field::Follows,
        Field::Label,
        Field::Bytes,
    ];

    /// As `data.toml` has it.
    pub(in super::super) fn name(self) -> &'static str {
        match self {
            Field::Token => "token",
            Field::Target => "target",
            Field::Predicted => "predicted",
            Field::Real => "real",
            Field::Document => "document",
            Field::Position => "position",
            Field::Segment => "segment",
            Field::Decoder => "decoder",
            Field::DecoderReal => "decoder_real",
            Field::Follows => "follows",
            Field::Label => "label",
            Field::Bytes => "bytes",
        }
    }

    /// The field of that name.
    pub(in super::super) fn named(name: &str) -> Option<Field> {
        Field::ALL.into_iter().find(|f| f.name() == name)
    }

    /// True if the examples of a task have it.
    pub(super) fn is_of(self, task: TaskKind) -> bool {
        match self {
            Field::Token | Field::Real => true,
            Field::Target | Field::Predicted => task != TaskKind::Classify,
            Field::Document | Field::Position => task != TaskKind::Spans,
            Field::Segment => matches!(task, TaskKind::Masked | TaskKind::Classify),
            Field::Follows => task == TaskKind::Masked,
            Field::Label => task == TaskKind::Classify,
            Field::Decoder | Field::DecoderReal => task == TaskKind::Spans,
            Field::Bytes => task == TaskKind::Next,
        }
    }

    /// The dim of its values in a task.
    pub(super) fn side(self, task: TaskKind) -> Side {
        match self {
            Field::Follows | Field::Label => Side::Example,
            Field::Target | Field::Predicted | Field::Decoder | Field::DecoderReal
                if task == TaskKind::Spans =>
            {
                Side::Decoder
            }
            _ => Side::Input,
        }
    }

    /// Whether its values are tokens.
    pub(super) fn is_tokens(self) -> bool {
        matches!(self, Field::Token | Field::Target | Field::Decoder)
    }

    /// Whether an input of that dtype can have its values.
    pub(super) fn fits(self, dtype: DType) -> bool {
        let truth = matches!(self, Field::Predicted | Field::Real | Field::DecoderReal | Field::Follows);
        match dtype {
            DType::I32 => true,
            DType::Bool => truth,
            DType::F32 | DType::F64 => truth || self == Field::Bytes,
            _ => false,
        }
    }
}
