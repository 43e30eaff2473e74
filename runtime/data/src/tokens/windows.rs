//! Examples as windows over a stream of tokens: how many there are, and which tokens each takes.

use super::stream::TokenStream;
use super::task::{TaskKind, TaskOptions};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use std::ops::Range;

/// The examples of a set of text.
#[derive(Debug)]
pub(in super::super) struct TokenExamples {
    pub(super) stream: TokenStream,
    pub(super) task: TaskOptions,
    /// Number of a field's values along the input, and along the decoder's positions.
    pub(super) lengths: (usize, usize),
    /// The name of the dim of the first.
    pub(super) sequence: String,
    /// Tokens of the stream that an example takes at most, without the one after them that a last prediction needs.
    pub(super) takes: usize,
    /// If examples keep to documents, the number of examples before each, and the total.
    pub(super) before: Option<Vec<usize>>,
    pub(super) count: usize,
    /// Tokens that continue a word, if whole words are hidden.
    pub(super) continues_word: Vec<bool>,
    /// Bytes of text of each token, where a field has them.
    pub(super) byte_lengths: Vec<u16>,
}

/// An example, as numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TokenExample {
    pub(super) token: Vec<i32>,
    pub(super) target: Vec<i32>,
    pub(super) predicted: Vec<i32>,
    pub(super) real: Vec<i32>,
    pub(super) document: Vec<i32>,
    pub(super) position: Vec<i32>,
    pub(super) segment: Vec<i32>,
    pub(super) decoder: Vec<i32>,
    pub(super) decoder_real: Vec<i32>,
    pub(super) bytes: Vec<i32>,
    pub(super) follows: bool,
    pub(super) label: i32,
}

impl TokenExamples {
    /// The number of examples.
    pub(in super::super) fn len(&self) -> usize {
        self.count
    }

    /// The name of their source.
    pub(in super::super) fn named(&self) -> &str {
        &self.stream.name
    }

    /// Whether a prediction needs the token after those of an example.
    fn looks_ahead(&self) -> usize {
        usize::from(self.task.kind == TaskKind::Next)
    }

    /// Counts them.
    pub(super) fn count(&mut self) -> Checked<()> {
        let (stream, ahead) = (&self.stream, self.looks_ahead());
        if self.task.kind == TaskKind::Classify {
            self.count = stream.starts.len() / if stream.pair.is_some() { 2 } else { 1 };
        } else if self.task.packed {
            self.count = stream.len.saturating_sub(ahead) / self.takes;
        } else {
            let mut before = vec![0];
            for (document, start) in stream.starts.iter().enumerate() {
                let tokens = stream.end_of(document) - start;
                self.count += tokens.saturating_sub(ahead).div_ceil(self.takes);
                before.push(self.count);
            }
            self.before = Some(before);
        }
        if self.count == 0 {
            let (len, takes) = (stream.len, self.takes + ahead);
            let message =
                format!("{} has {len} tokens, too few for one example, which takes {takes}", stream.name);
            return Err(Box::new(
                Diagnostic::error(codes::E0504, message)
                    .help("take more text, or declare a shorter sequence"),
            ));
        }
        Ok(())
    }

    /// Tokens of the stream in an example.
    pub(super) fn range(&self, record: usize) -> Range<usize> {
        let ahead = self.looks_ahead();
        match &self.before {
            None => record * self.takes..(record + 1) * self.takes + ahead,
            Some(before) => {
                let document = before.partition_point(|b| *b <= record) - 1;
                let start = self.stream.starts[document] + (record - before[document]) * self.takes;
                start..(start + self.takes + ahead).min(self.stream.end_of(document))
            }
        }
    }

    /// The padding token.
    pub(super) fn pad(&self) -> i32 {
        let special = &self.stream.special;
        special.pad.or(special.end).unwrap_or(0) as i32
    }

    /// Number of its document, from 0, and position in it, counted from the first of these tokens, for each token.
    pub(super) fn places(&self, range: Range<usize>) -> (Vec<i32>, Vec<i32>) {
        let (mut documents, mut positions) =
            (Vec::with_capacity(range.len()), Vec::with_capacity(range.len()));
        let (first, mut end) = self.stream.document_at(range.start);
        let (mut document, mut start) = (first, range.start);
        for at in range {
            if at == end {
                (document, start, end) = (document + 1, at, self.stream.end_of(document + 1));
            }
            documents.push((document - first) as i32);
            positions.push((at - start) as i32);
        }
        (documents, positions)
    }
}

/// Error of a task that a text does not allow.
pub(super) fn refused(message: String, help: impl Into<String>) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0508, message).help(help))
}
