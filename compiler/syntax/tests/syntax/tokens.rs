//! Texts cut into tokens, comments and the gaps between them, by rules written down a second time for the tests.

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A word, a number, a string, a sign; also a path such as `layers.*.w`.
    Token(String),
    /// A comment.
    Comment(String),
    /// What stands between two of the others.
    Gap {
        /// Nothing may stand here: beside `//` that divides.
        glued: bool,
        /// A blank must stand here.
        needed: bool,
        /// Line ends in it.
        lines: usize,
        /// It stands before a comment on the line of a token.
        trailing: bool,
    },
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The pieces of a text that parses.
pub(crate) fn pieces(text: &str) -> Vec<Piece> {
    let chars: Vec<char> = text.chars().collect();
    let mut out: Vec<Piece> = Vec::new();
    let mut at = 0;
    let mut before = String::new();
    // Before this token stand signs, and before these `//` that divides.
    let mut signed = false;
    while at < chars.len() {
        let gap = chars[at..].iter().take_while(|c| c.is_whitespace()).count();
        let lines = chars[at..at + gap].iter().filter(|c| **c == '\n').count();
        at += gap;
        if at == chars.len() {
            break;
        }
        let rest: String = chars[at..].iter().take(2).collect();
        let operand = before.ends_with(|c| word(c) || ")]".contains(c));
        let signs = chars.iter().skip(at + 2).take_while(|c| "-+!".contains(**c)).count();
        let after = |ahead: usize| chars.get(at + 2 + signs + ahead).copied().unwrap_or(' ');
        let begins = word(after(0)) || after(0) == '(' || after(0) == '.' && after(1).is_ascii_digit();
        let divides = rest == "//" && gap == 0 && operand && begins;
        let comment = rest == "//" && !divides;
        let len = if comment {
            chars[at..].iter().take_while(|c| **c != '\n').count()
        } else {
            token(&chars[at..])
        };
        let token: String = chars[at..at + len].iter().collect();
        let glue = divides || before == "//" || signed;
        signed = glue && ["-", "!"].contains(&token.as_str());
        // Joined, two signs could read as a third.
        let signs = |t: &str, end: bool| {
            let c = if end { t.chars().last() } else { t.chars().next() };
            c.is_some_and(|c| word(c) || "-=<>!*./&\"".contains(c))
        };
        let needed = signs(&before, true) && signs(&token, false);
        out.push(Piece::Gap {
            glued: glue,
            needed,
            lines,
            trailing: comment && lines == 0 && !out.is_empty(),
        });
        at += len;
        out.push(if comment { Piece::Comment(token.clone()) } else { Piece::Token(token.clone()) });
        before = if comment { String::new() } else { token };
    }
    out
}

/// Length of the token at the beginning of `chars`.
fn token(chars: &[char]) -> usize {
    if chars[0] == '"' {
        let mut escaped = false;
        let body = chars[1..].iter().take_while(|c| {
            let ends = **c == '"' && !escaped;
            escaped = **c == '\\' && !escaped;
            !ends
        });
        return body.count() + 2;
    }
    let pair: String = chars.iter().take(2).collect();
    if ["->", "==", "!=", "<=", ">=", "**", "//", ".."].contains(&pair.as_str()) && pair != "**" {
        return 2;
    }
    // Paths and numbers: words, `*`, single points and `#` that touch, signs of exponents, and some iterations of a loop.
    let touches = |i: usize| chars.get(i).is_some_and(|c| word(*c) || *c == '*');
    let dotted = word(chars[0]) || chars[0] == '*' && chars.get(1).is_some_and(|c| *c == '.' || *c == '*');
    if !dotted {
        return 1;
    }
    let positions = |i: usize| {
        let inside = chars.get(i + 1..)?.iter().take_while(|c| c.is_ascii_digit() || **c == '.').count();
        let whole = chars[i] == '[' && inside > 0 && chars.get(i + 1 + inside) == Some(&']');
        whole.then_some(inside + 2)
    };
    let mut len = 1;
    loop {
        if let Some(more) = positions(len) {
            len += more;
            continue;
        }
        if !(touches(len)
            || matches!(chars.get(len), Some('.' | '#')) && touches(len + 1)
            || chars[0].is_ascii_digit()
                && "eE".contains(chars[len - 1])
                && matches!(chars.get(len), Some('-' | '+'))
                && chars.get(len + 1).is_some_and(char::is_ascii_digit))
        {
            return len;
        }
        len += 1;
    }
}
