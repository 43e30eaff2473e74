//! Hidden spans, as the T5 paper has them: each hidden span of the text is one sentinel for the encoder, and the decoder is to
//! say the sentinels with what they stand for.

use super::rng::ExampleRng;
use super::stream::TokenStream;
use super::task::TaskOptions;
use super::windows::{TokenExample, TokenExamples, refused};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;

/// Numbers of hidden tokens and of spans in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpanLengths {
    /// Tokens of text.
    pub(super) takes: usize,
    pub(super) hidden: usize,
    pub(super) spans: usize,
}

impl SpanLengths {
    fn of(takes: usize, task: TaskOptions) -> SpanLengths {
        if takes < 2 {
            return SpanLengths { takes, hidden: 0, spans: 0 };
        }
        let hidden = ((takes as f64 * task.rate).round_ties_even() as usize).clamp(1, takes - 1);
        let spans = (hidden as f64 / task.span).round_ties_even() as usize;
        SpanLengths { takes, hidden, spans: spans.clamp(1, hidden.min(takes - hidden)) }
    }

    /// Tokens of the encoder: the rest, a sentinel for each span, and the end.
    fn input(&self) -> usize {
        self.takes - self.hidden + self.spans + 1
    }

    /// Tokens of the decoder: what is hidden, a sentinel before each span, and the end.
    fn target(&self) -> usize {
        self.hidden + self.spans + 1
    }

    /// The longest text that fits.
    pub(super) fn fitting(
        task: TaskOptions,
        (input, target): (usize, usize),
        stream: &TokenStream,
    ) -> Checked<SpanLengths> {
        let mut best = SpanLengths::of(1, task);
        while SpanLengths::of(best.takes + 1, task).input() <= input {
            best = SpanLengths::of(best.takes + 1, task);
        }
        let short = |what: &str, is: usize, least: usize| {
            let message = format!("a sequence of {is} is too short for {what}, which takes {least}");
            Box::new(
                Diagnostic::error(codes::E0504, message).help(format!("declare a dim of at least {least}")),
            )
        };
        if best.hidden == 0 {
            return Err(short("a text with a hidden span", input, SpanLengths::of(2, task).input()));
        }
        if best.target() > target {
            return Err(short(&format!("what is hidden of a sequence of {input}"), target, best.target()));
        }
        let has = stream.special.sentinels.len();
        if has < best.spans {
            let message = format!(
                "an example of {input} tokens needs {} sentinels, one for each hidden span, but the vocabulary of {} has {has}",
                best.spans, stream.name
            );
            let help =
                format!("tokenize with more: `meshwright data tokenize --sentinels {}`", best.spans.max(100));
            return Err(refused(message, help));
        }
        Ok(best)
    }

    /// How long pieces of a text are, in turns: text, a hidden span, text, …, text. The authors' code begins with text and ends
    /// with a hidden span, which for one span is always the same one; here the text before the first span and that after the last
    /// may be empty, and each place is as likely as the others.
    fn draw(&self, rng: &mut ExampleRng) -> Vec<usize> {
        let hidden = parts(self.hidden, self.spans, rng);
        let mut text = parts(self.takes - self.hidden + 2, self.spans + 1, rng);
        if let Some(first) = text.first_mut() {
            *first -= 1;
        }
        if let Some(last) = text.last_mut() {
            *last -= 1;
        }
        let mut out: Vec<usize> = text.iter().zip(hidden).flat_map(|(t, h)| [*t, h]).collect();
        out.extend(text.last());
        out
    }
}

/// `n` as a sum of `parts` numbers of at least 1, each sum as likely as the others.
fn parts(n: usize, parts: usize, rng: &mut ExampleRng) -> Vec<usize> {
    if parts == 0 {
        return Vec::new();
    }
    let mut begins: Vec<bool> = (1..n).map(|i| i < parts).collect();
    rng.shuffle(&mut begins);
    let mut out = vec![1];
    for begin in begins {
        match (begin, out.last_mut()) {
            (false, Some(last)) => *last += 1,
            _ => out.push(1),
        }
    }
    out
}

impl TokenExamples {
    pub(super) fn spans(&self, record: usize, mut rng: ExampleRng) -> Checked<TokenExample> {
        let tokens = self.stream.read(self.range(record), record)?;
        let lengths = SpanLengths::of(tokens.len(), self.task);
        let mut e = TokenExample::default();
        let mut rest = &tokens[..];
        for (i, n) in lengths.draw(&mut rng).into_iter().enumerate() {
            let (piece, after) = rest.split_at(n);
            if i % 2 == 0 {
                e.token.extend(piece);
            } else {
                let sentinel = self.stream.special.sentinels.get(i / 2).copied().unwrap_or_default() as i32;
                e.token.push(sentinel);
                e.target.push(sentinel);
                e.target.extend(piece);
            }
            rest = after;
        }
        let end = self.stream.special.end.map(|t| t as i32);
        e.token.extend(end);
        e.target.extend(end);
        // The decoder begins with what fills up, and then reads what it should have said.
        e.decoder =
            std::iter::once(self.pad()).chain(e.target.iter().copied()).take(e.target.len()).collect();
        e.real = vec![1; e.token.len()];
        e.predicted = vec![1; e.target.len()];
        e.decoder_real = vec![1; e.decoder.len()];
        let (input, target) = self.lengths;
        for (list, fill) in [(&mut e.token, self.pad()), (&mut e.real, 0)] {
            list.resize(input, fill);
        }
        for (list, fill) in [
            (&mut e.target, self.pad()),
            (&mut e.predicted, 0),
            (&mut e.decoder, self.pad()),
            (&mut e.decoder_real, 0),
        ] {
            list.resize(target, fill);
        }
        Ok(e)
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::TaskKind;
    use super::*;
    use crate::EpochSeed;

    #[test]
    fn lengths_are_those_of_the_paper() {
        let task = TaskKind::Spans.usual();
        // As `random_spans_helper` of the authors' code has them for 512 tokens.
        let of_512 = SpanLengths::of(568, task);
        assert_eq!((of_512.input(), of_512.target()), (512, 114));
        assert!(SpanLengths::of(569, task).input() > 512);
        for n in 2..400 {
            let l = SpanLengths::of(n, task);
            assert!(l.input() <= SpanLengths::of(n + 1, task).input(), "{n}");
            assert!(l.spans >= 1 && l.hidden >= l.spans && n - l.hidden >= l.spans, "{n}");
        }
    }

    #[test]
    fn a_span_may_be_anywhere() {
        let one = SpanLengths::of(26, TaskKind::Spans.usual());
        assert_eq!((one.hidden, one.spans), (4, 1));
        let mut counts = [0; 23];
        for record in 0..2300 {
            let drawn = one.draw(&mut ExampleRng::new("test", EpochSeed::default(), record));
            assert!(drawn.len() == 3 && drawn[1] == 4 && drawn.iter().sum::<usize>() == 26, "{drawn:?}");
            counts[drawn[0]] += 1;
        }
        assert!(counts.iter().all(|n| (60..150).contains(n)), "{counts:?}");
        for takes in 1..60 {
            let lengths = SpanLengths::of(takes, TaskKind::Spans.usual());
            for record in 0..40 {
                let drawn = lengths.draw(&mut ExampleRng::new("test", EpochSeed::default(), record));
                assert!(drawn.iter().sum::<usize>() == takes && drawn.len() == 2 * lengths.spans + 1);
                // Two spans do not touch: one sentinel would stand for both.
                assert!(drawn.iter().take(2 * lengths.spans).skip(1).all(|n| *n > 0), "{drawn:?}");
            }
        }
    }
}
