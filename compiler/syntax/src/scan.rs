//! The first pass over a text: tokens, comments, and the limits that keep every later pass safe.
//!
//! It makes a copy of the text in which comments are blanks, byte for byte, so that offsets stay what they are.

use meshwright_diag::{Diagnostic, FileId, Span, codes};

use crate::{MAX_BYTES, MAX_ERRORS, MAX_NESTING};

/// Which of the two languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Strings, brackets, and `//` between two operands without blanks is integer division.
    Model,
    /// `//` is always a comment.
    Layout,
}

/// Kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Letters, digits and `_`, not beginning with a digit.
    Word,
    /// Begins with a digit.
    Number,
    /// A string with its quotes.
    Text,
    /// Signs of the language.
    Sign,
    /// A character that neither language uses.
    Strange,
}

/// A token: bytes `start..end`.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// Its kind.
    pub kind: TokenKind,
    /// First byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
    /// True for the first token of its line.
    pub leads: bool,
}

/// A comment: bytes `start..end`, the end of the line not included.
#[derive(Clone, Copy, Debug)]
pub struct Comment {
    /// First byte.
    pub start: usize,
    /// One past its last byte.
    pub end: usize,
}

/// The result of the pass.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The text with blanks for comments.
    pub(crate) masked: String,
    /// Its tokens in order.
    pub(crate) tokens: Vec<Token>,
    /// Its comments in order.
    pub(crate) comments: Vec<Comment>,
}

/// The tokens and the comments of a text, in order.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Its comments.
    pub comments: Vec<Comment>,
}

/// The tokens and the comments of a text, for an editor; none where the text is too long or nested too deep.
pub fn tokens(text: &str, language: Language) -> Tokens {
    let scanned = scan(FileId::default(), text, language, &mut Vec::new()).unwrap_or_default();
    Tokens { tokens: scanned.tokens, comments: scanned.comments }
}

const LONG_SIGNS: [&str; 10] = ["->", "==", "!=", "<=", ">=", "=>", "**", "//", "..", "&&"];
const SIGNS: &str = "()[]{},:;=+-*/%<>!.";

/// Scans `text`. `None` where a limit is broken and no later pass may run.
pub(crate) fn scan(
    file: FileId,
    text: &str,
    language: Language,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Scan> {
    if text.len() > MAX_BYTES {
        diagnostics.push(
            Diagnostic::error(
                codes::E0103,
                format!("the file has {} bytes; at most {MAX_BYTES} are read", text.len()),
            )
            .at(Span::new(file, 0, 0), "")
            .help("cut it into files and join them with `use`"),
        );
        return None;
    }
    let mut s = Scanner { file, text, language, out: Scan::default(), at: 0, leads: true, diagnostics };
    s.run();
    let out = s.out;
    nesting(file, &out, diagnostics)?;
    Some(out)
}

struct Scanner<'a> {
    file: FileId,
    text: &'a str,
    language: Language,
    out: Scan,
    at: usize,
    leads: bool,
    diagnostics: &'a mut Vec<Diagnostic>,
}

impl Scanner<'_> {
    fn run(&mut self) {
        while let Some(c) = self.text[self.at..].chars().next() {
            let rest = &self.text[self.at..];
            if c == '\n' {
                self.leads = true;
                self.out.masked.push('\n');
                self.at += 1;
            } else if c.is_whitespace() || c == '\u{feff}' && self.at == 0 {
                self.blank(c.len_utf8());
            } else if rest.starts_with("//") && !self.divides(rest) {
                let end = self.at + rest.find('\n').unwrap_or(rest.len());
                let end = self.at + self.text[self.at..end].trim_end_matches('\r').len();
                self.out.comments.push(Comment { start: self.at, end });
                self.blank(end - self.at);
            } else if c.is_ascii_alphabetic() || c == '_' {
                self.token(TokenKind::Word, rest.bytes().take_while(|&b| is_word(b)).count());
            } else if c.is_ascii_digit() {
                self.token(TokenKind::Number, number_len(rest.as_bytes()));
            } else if c == '"' && self.language == Language::Model {
                self.string();
            } else if let Some(sign) = LONG_SIGNS.iter().find(|s| rest.starts_with(**s)) {
                self.token(TokenKind::Sign, sign.len());
            } else if SIGNS.contains(c) {
                self.token(TokenKind::Sign, 1);
            } else {
                self.token(TokenKind::Strange, c.len_utf8());
            }
        }
    }

    fn blank(&mut self, bytes: usize) {
        self.out.masked.extend(std::iter::repeat_n(' ', bytes));
        self.at += bytes;
    }

    fn token(&mut self, kind: TokenKind, bytes: usize) {
        let end = self.at + bytes;
        self.out.tokens.push(Token { kind, start: self.at, end, leads: self.leads });
        self.out.masked.push_str(&self.text[self.at..end]);
        self.leads = false;
        self.at = end;
    }

    /// Whether `//` here stands between two operands without blanks. The second may have signs, also the `+` and the
    /// point without a digit before it that no operand begins with: the parser then says so.
    fn divides(&self, rest: &str) -> bool {
        let before = self.text[..self.at].bytes().next_back();
        let unsigned = rest[2..].trim_start_matches(['-', '+', '!']).as_bytes();
        let digits = unsigned.strip_prefix(b".").filter(|b| b.first().is_some_and(u8::is_ascii_digit));
        self.language == Language::Model
            && self.out.tokens.last().is_some_and(|t| t.end == self.at)
            && before.is_some_and(|b| is_word(b) || b == b')' || b == b']')
            && digits.unwrap_or(unsigned).first().is_some_and(|b| is_word(*b) || *b == b'(')
    }

    fn string(&mut self) {
        let rest = &self.text[self.at..];
        let (mut escaped, mut end) = (false, rest.len());
        for (i, b) in rest.bytes().enumerate().skip(1) {
            if b == b'"' && !escaped {
                self.token(TokenKind::Text, i + 1);
                return;
            }
            if b == b'\n' {
                end = i;
                break;
            }
            escaped = b == b'\\' && !escaped;
        }
        let end = self.at + rest[..end].trim_end().len();
        // One more than are reported says that there are more.
        if self.diagnostics.len() <= MAX_ERRORS {
            self.diagnostics.push(
                Diagnostic::error(codes::E0106, "this string has no closing quote")
                    .at(Span::new(self.file, self.at, end), "the string begins here")
                    .fix("close it", Span::new(self.file, end, end), "\"", false),
            );
        }
        // It goes on as a closed string, so that nothing is reported twice.
        let bytes = end - self.at;
        self.out.tokens.push(Token { kind: TokenKind::Text, start: self.at, end, leads: self.leads });
        self.out.masked.push_str(if bytes > 1 { "\"" } else { "0" });
        self.out.masked.extend(std::iter::repeat_n(' ', bytes.saturating_sub(2)));
        self.out.masked.push_str(if bytes > 1 { "\"" } else { "" });
        self.leads = false;
        self.at = end;
    }
}

pub(crate) fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Length of what looks like a number: `10_000`, `1.5e-9`, also a wrong one such as `3x`.
pub(crate) fn number_len(bytes: &[u8]) -> usize {
    let word = |from: usize| bytes[from..].iter().take_while(|&&b| is_word(b)).count();
    let signed_exponent = |end: usize| {
        matches!(bytes.get(end - 1), Some(b'e' | b'E'))
            && matches!(bytes.get(end), Some(b'+' | b'-'))
            && bytes.get(end + 1).is_some_and(u8::is_ascii_digit)
    };
    let mut end = word(0);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end += 1 + word(end + 1);
    }
    if signed_exponent(end) {
        end += 1 + word(end + 1);
    }
    end
}

/// Refuses texts whose brackets are nested too deeply for the recursive passes.
fn nesting(file: FileId, scan: &Scan, diagnostics: &mut Vec<Diagnostic>) -> Option<()> {
    let mut depth = 0usize;
    for token in scan.tokens.iter().filter(|t| t.kind == TokenKind::Sign) {
        match &scan.masked[token.start..token.end] {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            diagnostics.push(
                Diagnostic::error(codes::E0102, format!("more than {MAX_NESTING} brackets are open at once"))
                    .at(Span::new(file, token.start, token.end), "this one is too many")
                    .help("give parts of the expression names with `let`"),
            );
            return None;
        }
    }
    Some(())
}
