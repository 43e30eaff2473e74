//! Text to tokens.

/// A piece of the text, and the line that it is in, from 1.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Where the word at the start of `rest` ends. Two colons belong to it, as in `L2::128B`; one ends a label.
fn word(rest: &[u8]) -> usize {
    let mut end = 0;
    while end < rest.len() {
        if is_word(rest[end]) {
            end += 1;
        } else if rest[end..].starts_with(b"::") {
            end += 2;
        } else {
            break;
        }
    }
    end
}

/// Where a comment or a text that starts here ends; 0 where none does.
fn passage(rest: &str) -> usize {
    let to = |from: usize, mark: &str| rest[from..].find(mark).map(|i| from + i);
    if rest.starts_with("//") {
        to(0, "\n").unwrap_or(rest.len())
    } else if rest.starts_with("/*") {
        to(2, "*/").map_or(rest.len(), |i| i + 2)
    } else if rest.starts_with('"') {
        to(1, "\"").map_or(rest.len(), |i| i + 1)
    } else {
        0
    }
}

/// All tokens: words and numbers, texts in quotes, and single marks.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.as_bytes()[0];
        let skipped = passage(rest);
        let length = match first {
            b'\n' => {
                line += 1;
                1
            }
            _ if first.is_ascii_whitespace() => 1,
            _ if skipped > 0 => {
                if first == b'"' {
                    found.push(Token { text: &rest[..skipped], line });
                }
                line += rest[..skipped].matches('\n').count() as u32;
                skipped
            }
            _ if is_word(first) => {
                let end = word(rest.as_bytes());
                found.push(Token { text: &rest[..end], line });
                end
            }
            _ if first.is_ascii_punctuation() => {
                found.push(Token { text: &rest[..1], line });
                1
            }
            _ => return Err(format!("line {line}: a character that PTX does not have")),
        };
        at += length;
    }
    Ok(found)
}
