//! A text that grows token by token.

use meshwright_data::corpus::TextTokenizer;
use meshwright_files::Checked;

/// Why a text is not continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEnd {
    /// By the token that ends texts, which is not part of it.
    EndToken,
    /// There were to be no more tokens.
    Length,
    /// The model has no positions for more.
    Context,
}

impl TextEnd {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            TextEnd::EndToken => "end",
            TextEnd::Length => "length",
            TextEnd::Context => "context",
        }
    }
}

/// Ends of texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The token that ends a text.
    pub(super) end: Option<u32>,
    /// Most tokens that are added.
    pub(super) most: usize,
    /// Positions of the model.
    pub(super) context: usize,
}

/// A text that was continued.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedText {
    /// The given text.
    pub prompt: String,
    /// The number of the prompt.
    pub number: usize,
    /// Of a beam search its place among the texts of its prompt, from 0, and what it is compared by: the logarithm of its
    /// probability over the length penalty.
    pub beam: Option<(usize, f64)>,
    /// The generated text.
    pub text: String,
    /// The tokens that follow.
    pub tokens: Vec<u32>,
    /// The sum of the natural logarithms of their probabilities, as the model has them.
    pub log_probability: f64,
    /// Why nothing follows these.
    pub ended: TextEnd,
}

/// A text that is being continued.
#[derive(Clone)]
pub(super) struct Sequence {
    /// All its tokens.
    pub(super) tokens: Vec<u32>,
    /// Number of given tokens.
    given: usize,
    /// Positions that were computed.
    computed: usize,
    log_probability: f64,
    pub(super) ended: Option<TextEnd>,
    text: String,
    /// Reported tokens: text was emitted up to the second; from the first on they decide how the next one begins.
    told: (usize, usize),
}

impl Sequence {
    pub(super) fn new(tokens: Vec<u32>) -> Sequence {
        let given = tokens.len();
        Sequence {
            tokens,
            given,
            computed: 0,
            log_probability: 0.0,
            ended: None,
            text: String::new(),
            told: (0, given),
        }
    }

    /// The tokens that the next run computes; one that has ended is computed again, for nothing.
    pub(super) fn pending(&self) -> &[u32] {
        &self.tokens[self.computed.min(self.tokens.len() - 1)..]
    }

    /// The position of the first of them.
    pub(super) fn start(&self, context: usize) -> usize {
        self.computed.min(self.tokens.len() - 1).min(context - 1)
    }

    /// Adds the token that follows the computed ones.
    pub(super) fn push(&mut self, token: u32, log_probability: f64, limits: Limits) {
        let Limits { end, most, context } = limits;
        self.computed = self.tokens.len();
        self.log_probability += log_probability;
        if end == Some(token) {
            self.ended = Some(TextEnd::EndToken);
            return;
        }
        self.tokens.push(token);
        if self.tokens.len() - self.given >= most {
            self.ended = Some(TextEnd::Length);
        } else if self.tokens.len() > context {
            self.ended = Some(TextEnd::Context);
        }
    }

    /// The logarithm of the probability of all tokens that were added.
    pub(super) fn log_probability(&self) -> f64 {
        self.log_probability
    }

    /// Number of added tokens, including the one that ends it.
    pub(super) fn length(&self) -> usize {
        self.tokens.len() - self.given + usize::from(self.ended == Some(TextEnd::EndToken))
    }

    /// Greatest number of tokens.
    pub(super) fn longest(&self, limits: Limits) -> usize {
        limits.most.min((limits.context + 1).saturating_sub(self.given)).max(self.length())
    }

    /// The new text. A character with only some of its bytes waits for the rest, except at the end.
    pub(super) fn text(&mut self, tokenizer: &TextTokenizer) -> Checked<String> {
        let (from, told) = self.told;
        let before = tokenizer.decode(&self.tokens[from..told])?;
        let all = tokenizer.decode(&self.tokens[from..])?;
        if self.ended.is_none() && all.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let piece =
            all.strip_prefix(before.as_str()).or(all.get(before.len()..)).unwrap_or_default().to_string();
        self.told = (told, self.tokens.len());
        self.text += &piece;
        Ok(piece)
    }

    /// The finished text; `None` while it is live.
    pub(super) fn finished(self, (number, prompt): (usize, &str)) -> Option<GeneratedText> {
        let Sequence { mut tokens, given, text, log_probability, ended, .. } = self;
        let tokens = tokens.split_off(given);
        let (prompt, ended) = (prompt.into(), ended?);
        Some(GeneratedText { prompt, number, beam: None, text, tokens, log_probability, ended })
    }
}
