//! Next tokens: a window of tokens, and for each the one after it.

use super::windows::{TokenExample, TokenExamples};
use meshwright_files::Checked;

impl TokenExamples {
    pub(super) fn next(&self, record: usize) -> Checked<TokenExample> {
        let range = self.range(record);
        let tokens = self.stream.read(range.clone(), record)?;
        let (n, length) = (tokens.len() - 1, self.lengths.0);
        let (mut document, mut position) = self.places(range);
        // Of the first token of a document nothing before it tells.
        let predicted: Vec<i32> = document.windows(2).map(|d| i32::from(d[0] == d[1])).collect();
        document.truncate(n);
        position.truncate(n);
        let bytes =
            |(t, p): (&i32, &i32)| p * self.byte_lengths.get(*t as usize).map_or(0, |n| i32::from(*n));
        let mut e = TokenExample {
            bytes: tokens[1..].iter().zip(&predicted).map(bytes).collect(),
            token: tokens[..n].to_vec(),
            target: tokens[1..].to_vec(),
            predicted,
            real: vec![1; n],
            document,
            position,
            ..TokenExample::default()
        };
        let last = e.document.last().map_or(0, |d| d + 1);
        for (list, fill) in [
            (&mut e.token, self.pad()),
            (&mut e.target, self.pad()),
            (&mut e.predicted, 0),
            (&mut e.real, 0),
            (&mut e.document, last),
            (&mut e.position, 0),
            (&mut e.bytes, 0),
        ] {
            list.resize(length, fill);
        }
        Ok(e)
    }
}
