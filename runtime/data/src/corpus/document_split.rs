//! Long documents cut into pieces, which become tokens one by one.

/// A longer document is tokenized in pieces that end with a line, so that several cores share it and memory is bounded.
const PIECE: usize = 1 << 17;

/// How far after that the end of a line is looked for.
const NEAR: usize = 1 << 15;

/// A document, cut at the first end of a line after [`PIECE`] bytes. Where none is near, which is as good as none in text, it is
/// cut before a blank, and where there is none either between two characters: cutting text into tokens takes a hundred times its
/// size.
pub(super) fn pieces(mut document: &str) -> Vec<&str> {
    let mut out = Vec::new();
    while let Some(end) = end(document) {
        let (piece, rest) = document.split_at(end);
        out.push(piece);
        document = rest;
    }
    out.push(document);
    out
}

/// The end of the first piece of a document that begins so and may go on; `None` where that is not known yet.
pub(super) fn first_end(begin: &str) -> Option<usize> {
    // No character is longer.
    if begin.len() > PIECE + NEAR + 4 { end(begin) } else { None }
}

fn end(document: &str) -> Option<usize> {
    if document.len() <= PIECE {
        return None;
    }
    let near = document.floor_char_boundary(PIECE + NEAR);
    let (from, bytes) = (document.ceil_char_boundary(PIECE), document.as_bytes());
    let line = bytes[PIECE..near].iter().position(|b| *b == b'\n').map(|n| PIECE + n + 1);
    match line {
        Some(end) => Some(end),
        None if near == document.len() => None,
        None => Some(document[from..near].find(char::is_whitespace).map_or(near, |n| from + n)),
    }
}
