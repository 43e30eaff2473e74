//! Positions as the protocol counts them: lines from 0, and columns in UTF-16 code units.

use lsp_types::{Position, Range};

/// Where the lines of a text begin.
#[derive(Clone, Debug)]
pub(crate) struct LineIndex(Vec<usize>);

impl LineIndex {
    /// Of a text. A line ends with `\n`, `\r\n`, or `\r` alone.
    pub(crate) fn of(text: &str) -> LineIndex {
        let bytes = text.as_bytes();
        let ends = |i: usize| match bytes[i] {
            b'\n' => true,
            b'\r' => bytes.get(i + 1) != Some(&b'\n'),
            _ => false,
        };
        LineIndex(std::iter::once(0).chain((0..bytes.len()).filter(|i| ends(*i)).map(|i| i + 1)).collect())
    }

    /// The byte of a position; what is behind the end of a line or of the text is that end.
    pub(crate) fn offset(&self, text: &str, at: Position) -> usize {
        let line = at.line as usize;
        let Some(start) = self.0.get(line).copied() else { return text.len() };
        let end = self.0.get(line + 1).copied().unwrap_or(text.len());
        let content = text[start..end].trim_end_matches(['\r', '\n']);
        let mut units = 0;
        for (i, c) in content.char_indices() {
            // A position within a character is that of the character.
            if units + c.len_utf16() > at.character as usize {
                return start + i;
            }
            units += c.len_utf16();
        }
        start + content.len()
    }

    /// The position of a byte; one within a character is that of the character.
    pub(crate) fn position(&self, text: &str, offset: usize) -> Position {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.0.partition_point(|start| *start <= offset).saturating_sub(1);
        let units: usize = text[self.0[line]..offset].chars().map(char::len_utf16).sum();
        Position { line: line as u32, character: units as u32 }
    }

    /// The range of some bytes.
    pub(crate) fn range(&self, text: &str, start: usize, end: usize) -> Range {
        Range { start: self.position(text, start), end: self.position(text, end.max(start)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_utf_16() {
        let text = "a𝄞b\nü→x\r\n\rend";
        let lines = LineIndex::of(text);
        let at = |line, character| Position { line, character };
        for (position, rest) in [
            (at(0, 0), "a𝄞"),
            (at(0, 1), "𝄞b"),
            (at(0, 2), "𝄞b"),
            (at(0, 3), "b\n"),
            (at(0, 9), "\nü"),
            (at(1, 1), "→x"),
            (at(1, 2), "x\r"),
            (at(1, 3), "\r\n\r"),
            (at(2, 0), "\rend"),
            (at(3, 3), ""),
            (at(9, 0), ""),
        ] {
            let offset = lines.offset(text, position);
            assert!(text[offset..].starts_with(rest), "{position:?} is at {:?}", &text[offset..]);
        }
        // Nothing stands between the two characters that end a line.
        for (i, _) in
            text.char_indices().chain([(text.len(), ' ')]).filter(|(i, _)| !text[*i..].starts_with("\n\r"))
        {
            assert_eq!(lines.offset(text, lines.position(text, i)), i, "{:?}", &text[i..]);
        }
    }
}
