//! `//` opens a comment and is integer division, too. Written without blanks between two operands it divides;
//! everywhere else it is a comment. Where a comment behind an operand reads like a divisor (`seq // 4`), the
//! text could silently mean something else than its author thinks, so it is refused.

use meshwright_sorted::SortedSet;

use meshwright_diag::{Diagnostic, FileId, Span, codes};

use crate::MAX_ERRORS;
use crate::scan::{Comment, Scan, TokenKind, is_word, number_len};

/// Reports every comment that could be meant as a division.
pub(crate) fn check(file: FileId, text: &str, scan: &Scan, diagnostics: &mut Vec<Diagnostic>) {
    if scan.comments.is_empty() {
        return;
    }
    let mut declared = SortedSet::new();
    for pair in scan.tokens.windows(2) {
        if pair[0].kind == TokenKind::Word && &scan.masked[pair[1].start..pair[1].end] == "=" {
            declared.insert(&text[pair[0].start..pair[0].end]);
        }
    }
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
            let body = text[comment.start..comment.end].trim_start_matches('/');
            let gap = comment.end - body.trim_start().len();
            let span = Span::new(file, comment.start, comment.end);
            let head = Span::new(file, comment.start, gap);
            diagnostics.push(
                Diagnostic::error(codes::E0107, "this could be a comment or an integer division")
                    .at(span, "read as a comment, it has no effect")
                    .fix("to divide, leave no blanks", Span::new(file, before.end, gap), "//", false)
                    .fix("to keep a comment, begin it with a word", head, "// note: ", false),
            );
        }
    }
}

/// Whether a comment is numbers and declared names joined by signs, and nothing else.
fn reads_like_divisor(text: &str, comment: Comment, declared: &SortedSet<&str>) -> bool {
    let body = &text[comment.start + 2..comment.end];
    let bytes = body.as_bytes();
    let (mut at, mut after_operand, mut any) = (0, false, false);
    while at < bytes.len() {
        let b = bytes[at];
        if is_word(b) {
            let len = number_len(&bytes[at..]).max(1);
            let word = &body[at..at + len];
            let number =
                b.is_ascii_digit() && word.bytes().all(|b| b.is_ascii_digit() || b"_.eE+-".contains(&b));
            let rest = body[at + len..].trim_start();
            // `768 // 2, y = 3`: the comment would swallow a declaration.
            let declares = body[..at].trim_end().ends_with(',') && rest.starts_with('=');
            if after_operand || !(number || declares || declared.contains(word)) {
                return false;
            }
            (after_operand, any) = (!declares, true);
            at = if declares { bytes.len() - rest.len() + 1 } else { at + len };
        } else if b" \t".contains(&b) {
            at += 1;
        } else if b"+-*/%(),".contains(&b) {
            if !any && b != b'(' {
                return false;
            }
            after_operand = b == b')';
            at += 1;
        } else {
            return false;
        }
    }
    any
}
