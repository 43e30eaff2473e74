//! Texts that are told apart: each is an example, from its beginning on as far as it fits.

use super::windows::{TokenExample, TokenExamples};
use crate::Checked;

impl TokenExamples {
    pub(super) fn classify(&self, record: usize) -> Checked<TokenExample> {
        let (length, special) = (self.lengths.0, &self.stream.special);
        let (first, last) = (special.cls.map(|t| t as i32), special.sep.map(|t| t as i32));
        let around = usize::from(first.is_some()) + usize::from(last.is_some());
        let start = self.stream.starts[record];
        let end = self.stream.end_of(record).min(start + length.saturating_sub(around));
        let mut token: Vec<i32> = first.into_iter().collect();
        token.extend(self.stream.read(start..end, record)?);
        token.extend(last);
        token.truncate(length);
        let n = token.len();
        token.resize(length, self.pad());
        let label = self.stream.labels.get(record).copied().unwrap_or_default();
        Ok(TokenExample {
            token,
            real: (0..length).map(|i| i32::from(i < n)).collect(),
            document: (0..length).map(|i| i32::from(i >= n)).collect(),
            position: (0..n as i32).chain(std::iter::repeat_n(0, length - n)).collect(),
            segment: vec![0; length],
            label,
            ..TokenExample::default()
        })
    }
}
