//! Hidden tokens, as the BERT paper has them: of 15 % of the tokens eight of ten become `[MASK]`, one a random token, and one
//! stays.

use super::rng::ExampleRng;
use super::stream::TokenStream;
use super::task::TaskOptions;
use super::windows::{TokenExample, TokenExamples, refused};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;

/// How many tokens of text an example of `length` takes: all but `[CLS]` and the `[SEP]` after each piece.
pub(super) fn takes(stream: &TokenStream, task: TaskOptions, length: usize) -> Checked<usize> {
    let special = &stream.special;
    for (name, token) in [("[CLS]", special.cls), ("[SEP]", special.sep), ("[MASK]", special.mask)] {
        if token.is_none() {
            let message =
                format!("the vocabulary of {} has no `{name}`, which masked examples need", stream.name);
            return Err(refused(
                message,
                "tokenize with word pieces: `meshwright data tokenize --train wordpiece`",
            ));
        }
    }
    let (added, least) = if task.pairs { (3, 2) } else { (2, 1) };
    if length < added + least {
        let message = format!(
            "a sequence of {length} is too short for a masked example: {added} of its tokens are special"
        );
        let help = format!("declare a dim of at least {}", added + least);
        return Err(Box::new(Diagnostic::error(codes::E0504, message).help(help)));
    }
    Ok(length - added)
}

impl TokenExamples {
    pub(super) fn masked(&self, record: usize, mut rng: ExampleRng) -> Checked<TokenExample> {
        let special = &self.stream.special;
        let [cls, sep, mask] = [special.cls, special.sep, special.mask].map(|t| t.unwrap_or_default() as i32);
        let range = self.range(record);
        let mut first = self.stream.read(range.clone(), record)?;
        let (places, _) = self.places(range.clone());
        let (mut second, mut follows) = (Vec::new(), false);
        if self.task.pairs {
            (second, follows) = self.second(&mut first, range, record, &mut rng)?;
        }
        let mut e = TokenExample { follows, ..TokenExample::default() };
        let last = places.last().copied().unwrap_or(0);
        e.token.push(cls);
        e.token.extend(&first);
        e.token.push(sep);
        e.document.push(0);
        e.document.extend(&places[..first.len()]);
        e.document.push(last);
        e.segment = vec![0; e.token.len()];
        if self.task.pairs {
            e.token.extend(&second);
            e.token.push(sep);
            e.segment.resize(e.token.len(), 1);
            // Both pieces are to be seen from each other.
            e.document = vec![0; e.token.len()];
        }
        let text: Vec<usize> = (1..=first.len()).chain((2..).skip(first.len()).take(second.len())).collect();
        e.real = vec![1; e.token.len()];
        e.target = e.token.clone();
        e.predicted = vec![0; e.token.len()];
        for at in self.hidden(&e.token, &text, &mut rng) {
            e.predicted[at] = 1;
            e.token[at] = match rng.below(10) {
                0..8 => mask,
                8 => self.random_token(&mut rng),
                _ => e.token[at],
            };
        }
        let length = self.lengths.0;
        e.position = (0..length as i32).collect();
        let after = if e.token.len() < length { e.document.last().map_or(0, |d| d + 1) } else { 0 };
        for (list, fill) in [
            (&mut e.token, self.pad()),
            (&mut e.target, self.pad()),
            (&mut e.predicted, 0),
            (&mut e.real, 0),
            (&mut e.document, after),
            (&mut e.segment, 0),
        ] {
            list.resize(length, fill);
        }
        Ok(e)
    }

    /// Parts the text of an example in two, and replaces the second part in half of all examples by text from elsewhere. Gives
    /// the second part, and whether it is the one that follows.
    fn second(
        &self,
        first: &mut Vec<i32>,
        range: std::ops::Range<usize>,
        record: usize,
        rng: &mut ExampleRng,
    ) -> Checked<(Vec<i32>, bool)> {
        let total = first.len();
        let at = if total < 2 { total } else { 1 + rng.below(total - 1) };
        let rest = first.split_off(at);
        let follows = rng.below(2) == 0 && !rest.is_empty();
        if follows {
            return Ok((rest, true));
        }
        // From another document, if there is one.
        let (own, _) = self.stream.document_at(range.start);
        let documents = self.stream.starts.len();
        let other = match documents {
            1 => 0,
            _ => (own + 1 + rng.below(documents - 1)) % documents,
        };
        let (start, end) = (self.stream.starts[other], self.stream.end_of(other));
        let most = self.takes - at;
        let from = start + rng.below(end - start);
        Ok((self.stream.read(from..(from + most).min(end), record)?, false))
    }

    /// The hidden ones among the positions `text`.
    fn hidden(&self, tokens: &[i32], text: &[usize], rng: &mut ExampleRng) -> Vec<usize> {
        let wanted = ((text.len() as f64 * self.task.rate).round() as usize).clamp(1, text.len());
        let mut words: Vec<Vec<usize>> = Vec::new();
        for at in text {
            let goes_on = self.continues_word.get(tokens[*at] as usize).copied().unwrap_or(false);
            match words.last_mut() {
                Some(word) if goes_on && word.last() == Some(&(at - 1)) => word.push(*at),
                _ => words.push(vec![*at]),
            }
        }
        rng.shuffle(&mut words);
        let mut hidden = Vec::with_capacity(wanted);
        for word in words {
            // A word that is too long is left out, unless nothing else can be hidden.
            if hidden.is_empty() || hidden.len() + word.len() <= wanted {
                hidden.extend(word);
            }
            if hidden.len() >= wanted {
                break;
            }
        }
        hidden.sort_unstable();
        hidden
    }

    /// A token that is not special.
    fn random_token(&self, rng: &mut ExampleRng) -> i32 {
        let special = &self.stream.special.all;
        let plain = self.stream.vocab.saturating_sub(special.len());
        let mut token = rng.below(plain.max(1));
        for s in special {
            token += usize::from(*s as usize <= token);
        }
        token.min(self.stream.vocab - 1) as i32
    }
}
