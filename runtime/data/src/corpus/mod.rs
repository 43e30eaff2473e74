//! Text as tokens: documents are read from files, a tokenizer makes tokens of them, and shards keep these with the borders of the
//! documents. [`tokenize()`] is the command `data tokenize`; training reads what it wrote, or tokenizes a small text itself.

mod document_split;
mod documents;
mod index;
mod kept_tokens;
mod labeled_texts;
mod lines;
mod manifest;
mod pair_form;
mod shard_writer;
mod tokenize;
mod tokenizer;
mod tokenizer_check;
mod trainer;

pub use documents::{DocumentRule, TextFiles};
pub(crate) use index::{CorpusIndex, SetIndex, SpecialTokens};
pub(crate) use kept_tokens::encode_kept;
pub use labeled_texts::LabelRule;
pub(crate) use labeled_texts::{LabeledTexts, class_of};
pub(crate) use pair_form::PairForm;
pub use tokenize::{TokenizeOptions, TokenizeProgress, Tokenized, tokenize};
pub use tokenizer::TextTokenizer;
pub use trainer::{TokenizerKind, TokenizerSource};

use meshwright_diag::{Diagnostic, codes};
use std::path::Path;

/// A file that cannot be read or written, and why.
fn failed(path: &Path, why: impl std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0502, format!("`{}`: {why}", path.display())))
}

/// What cannot be done with text as it was asked for.
fn refused(message: impl Into<String>, help: impl Into<String>) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0508, message.into()).help(help))
}

#[cfg(test)]
mod part_tests;
#[cfg(test)]
mod tests;
