//! Classification of texts, and of pairs of texts: each is an example, cut to the length that fits.

use super::stream::TokenStream;
use super::windows::{TokenExample, TokenExamples};
use crate::corpus::PairForm;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;

/// How many tokens of text an example of `length` takes.
///
/// # Errors
/// E0504 where a pair has no room.
pub(super) fn takes(stream: &TokenStream, length: usize) -> Checked<usize> {
    let Some(form) = &stream.pair else { return Ok(length) };
    let added = form.added();
    if length < added + 2 {
        let message = format!(
            "a sequence of {length} is too short for a pair of texts: {added} of its tokens are special"
        );
        let help = format!("declare a dim of at least {}", added + 2);
        return Err(Box::new(Diagnostic::error(codes::E0504, message).help(help)));
    }
    Ok(length - added)
}

/// Lengths of two texts after the longer one is cut first. If both are too long, each gets half of the room; an odd token goes to
/// the longer one, or to the second if they are equal.
fn longest_first([first, second]: [usize; 2], room: usize) -> [usize; 2] {
    let shorter = first.min(second).min(room / 2);
    match first <= second {
        true => [shorter, second.min(room - shorter)],
        false => [first.min(room - shorter), shorter],
    }
}

impl TokenExamples {
    pub(super) fn classify(&self, record: usize) -> Checked<TokenExample> {
        let length = self.lengths.0;
        let placed = match &self.stream.pair {
            Some(form) => self.joined(form, record)?,
            None => self.alone(record)?.into_iter().map(|token| (token, 0)).collect(),
        };
        let (mut token, mut segment): (Vec<i32>, Vec<i32>) = placed.into_iter().unzip();
        token.truncate(length);
        let n = token.len();
        token.resize(length, self.pad());
        segment.resize(length, 0);
        let label = self.stream.labels.get(record).copied().unwrap_or_default();
        Ok(TokenExample {
            token,
            real: (0..length).map(|i| i32::from(i < n)).collect(),
            document: (0..length).map(|i| i32::from(i >= n)).collect(),
            position: (0..n as i32).chain(std::iter::repeat_n(0, length - n)).collect(),
            segment,
            label,
            ..TokenExample::default()
        })
    }

    fn alone(&self, record: usize) -> Checked<Vec<i32>> {
        let special = &self.stream.special;
        let (first, last) = (special.cls.map(|t| t as i32), special.sep.map(|t| t as i32));
        let around = usize::from(first.is_some()) + usize::from(last.is_some());
        let start = self.stream.starts[record];
        let end = self.stream.end_of(record).min(start + self.lengths.0.saturating_sub(around));
        let mut token: Vec<i32> = first.into_iter().collect();
        token.extend(self.stream.read(start..end, record)?);
        token.extend(last);
        Ok(token)
    }

    /// Both texts of a pair, with the segment of each token.
    fn joined(&self, form: &PairForm, record: usize) -> Checked<Vec<(i32, i32)>> {
        let stream = &self.stream;
        let texts = [2 * record, 2 * record + 1];
        let lengths = texts.map(|text| stream.end_of(text) - stream.starts[text]);
        let fits = longest_first(lengths, self.takes);
        let mut out = form.before.clone();
        for (k, after) in [&form.between, &form.after].into_iter().enumerate() {
            let start = stream.starts[texts[k]];
            let tokens = stream.read(start..start + fits[k], record)?;
            out.extend(tokens.into_iter().map(|token| (token, form.segments[k])));
            out.extend(after);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::longest_first;

    #[test]
    fn the_longer_text_is_cut_first() {
        for (lengths, room, want) in [
            ([3, 4], 7, [3, 4]),
            ([2, 9], 7, [2, 5]),
            ([9, 2], 7, [5, 2]),
            ([9, 9], 7, [3, 4]),
            ([9, 6], 7, [4, 3]),
            ([0, 9], 7, [0, 7]),
            ([9, 9], 0, [0, 0]),
        ] {
            assert_eq!(longest_first(lengths, room), want, "{lengths:?} {room}");
        }
    }
}
