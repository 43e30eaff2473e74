//! `//` opens a comment and is integer division, too. Written without blanks between two operands it divides;
//! everywhere else it is a comment. Where a comment behind an operand reads like a divisor (`seq // 4`), the
//! text could silently mean something else than its author thinks, so it is refused.

use meshwright_sorted::SortedSet;

use meshwright_diag::{Diagnostic, FileId, Span, codes};

use crate::MAX_ERRORS;
use crate::scan::{Comment, Scan, Token, TokenKind, is_word, number_len};

/// Reports every comment that could be meant as a division.
pub(crate) fn check(file: FileId, text: &str, scan: &Scan, diagnostics: &mut Vec<Diagnostic>) {
    if scan.comments.is_empty() {
        return;
    }
    let declared = declared(text, scan);
    let mut next_token = 0;
    for comment in &scan.comments {
        // One more than are reported says that there are more.
        if diagnostics.len() > MAX_ERRORS {
            break;
        }
        while scan.tokens.get(next_token).is_some_and(|t| t.start < comment.start) {
            next_token += 1;
        }
        let Some(before) = next_token.checked_sub(1).map(|i| scan.tokens[i]) else { continue };
        let between = &text[before.end..comment.start];
        let operand = match before.kind {
            TokenKind::Word | TokenKind::Number => true,
            _ => matches!(&text[before.start..before.end], ")" | "]"),
        };
        if operand && !between.contains('\n') && reads_like_divisor(text, *comment, &declared) {
            diagnostics.push(ambiguous(file, text, before, *comment));
        }
    }
}

/// Names that the text declares: those before a `=`, and those behind a keyword of a statement that may have none.
fn declared<'t>(text: &'t str, scan: &Scan) -> SortedSet<&'t str> {
    let mut declared = SortedSet::new();
    for pair in scan.tokens.windows(2) {
        let [a, b] = [pair[0], pair[1]].map(|t| &text[t.start..t.end]);
        if pair[0].kind == TokenKind::Word && b == "=" {
            declared.insert(a);
        }
        if pair[1].kind == TokenKind::Word && ["input", "param", "state", "layer"].contains(&a) {
            declared.insert(b);
        }
    }
    declared
}

/// The error for a comment behind the operand `before`, with both corrections.
fn ambiguous(file: FileId, text: &str, before: Token, comment: Comment) -> Diagnostic {
    let body = text[comment.start..comment.end].trim_start_matches('/');
    let gap = comment.end - body.trim_start().len();
    let span = Span::new(file, comment.start, comment.end);
    let head = Span::new(file, comment.start, gap);
    let d = Diagnostic::error(codes::E0107, "this could be a comment or an integer division")
        .at(span, "read as a comment, it has no effect");
    // What no operand begins or ends with would be the next error.
    let divisor = body.trim();
    let signs = divisor.len() - divisor.trim_start_matches(['-', '!']).len();
    let d = if divisor[signs..].starts_with(|c: char| c.is_ascii_alphanumeric() || "_(".contains(c))
        && !divisor.ends_with('.')
    {
        d.fix("to divide, leave no blanks", Span::new(file, before.end, gap), "//", false)
    } else {
        d
    };
    d.fix("to keep a comment, begin it with a word", head, "// note: ", false)
}

/// Whether a comment is numbers, declared names and calls of them joined by signs, and nothing else.
fn reads_like_divisor(text: &str, comment: Comment, declared: &SortedSet<&str>) -> bool {
    let body = &text[comment.start + 2..comment.end];
    let bytes = body.as_bytes();
    let (mut at, mut after_operand, mut any) = (0, false, false);
    while at < bytes.len() {
        let b = bytes[at];
        let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
        if is_word(b) || b == b'.' && digit(at + 1) {
            let point = usize::from(b == b'.');
            let len = point + number_len(&bytes[at + point..]).max(1);
            let word = &body[at..at + len];
            let number =
                digit(at + point) && word.bytes().all(|b| b.is_ascii_digit() || b"_.eE+-".contains(&b));
            let rest = body[at + len..].trim_start();
            // `768 // 2, y = 3`: the comment would swallow a declaration.
            let declares = body[..at].trim_end().ends_with(',') && rest.starts_with('=');
            let called = !number && matches!(bytes.get(at + len), Some(b'(' | b'['));
            if after_operand || !(number || declares || called || declared.contains(word)) {
                return false;
            }
            // `2.`: a point that no digit follows is the number's all the same.
            let point = usize::from(number && !word.contains('.') && bytes.get(at + len) == Some(&b'.'));
            (after_operand, any) = (!declares && !called, true);
            at = if declares { bytes.len() - rest.len() + 1 } else { at + len + point };
        } else if b" \t".contains(&b) {
            at += 1;
        } else if b"+-!*/%(),[]".contains(&b) {
            if !any && !b"(+-!".contains(&b) {
                return false;
            }
            after_operand = b")]".contains(&b);
            at += 1;
        } else {
            return false;
        }
    }
    any
}
