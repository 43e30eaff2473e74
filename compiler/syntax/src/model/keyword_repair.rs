//! Repair of misspelled keywords.

use meshwright_diag::{Diagnostic, codes, nearest};

use super::Parser;
use super::keywords::{ITEMS, JOINING, SETTINGS, STATEMENTS, is_keyword};
use crate::MAX_ERRORS;
use crate::scan::TokenKind;

/// The block that the walk is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Train,
    Size,
    Body,
}

impl Parser<'_> {
    /// Finds words that begin a line, stand before another word, and are nearly a keyword: reports each, and
    /// lets everything after it see the keyword that was meant. A statement that ends before one stays whole.
    pub(super) fn mend_keywords(&mut self) {
        let mut next = Block::Body;
        let mut open: Vec<Block> = Vec::new();
        for i in 0..self.scan.tokens.len() {
            // One more than are reported says that there are more.
            if self.diagnostics.len() > MAX_ERRORS {
                return;
            }
            let token = self.scan.tokens[i];
            let word = self.token(i);
            match word {
                "{" => open.push(next),
                "}" => {
                    open.pop();
                }
                "train" => next = Block::Train,
                "size" if self.token(i + 2) == "{" => next = Block::Size,
                _ if is_keyword(word) => next = Block::Body,
                _ => {}
            }
            let candidates: &[&'static str] = match open.last() {
                None => &ITEMS,
                Some(Block::Train) => &SETTINGS,
                Some(Block::Body) => &STATEMENTS,
                Some(Block::Size) => continue,
            };
            let same_line =
                self.scan.tokens.get(i + 1).is_some_and(|t| !t.leads && t.kind != TokenKind::Sign);
            if token.kind != TokenKind::Word
                || !token.leads
                || !same_line
                || is_keyword(word)
                || candidates.contains(&word)
                || JOINING.contains(&word)
                || JOINING.contains(&self.token(i + 1))
                || i > 0 && JOINING.contains(&self.token(i - 1))
            {
                continue;
            }
            let Some(meant) = nearest(word, candidates.iter().copied())
                .and_then(|n| candidates.iter().find(|c| **c == n.name))
            else {
                continue;
            };
            next = match *meant {
                "train" => Block::Train,
                "size" => Block::Size,
                _ => Block::Body,
            };
            let span = self.span(i);
            self.diagnostics.push(
                Diagnostic::error(codes::E0101, format!("there is no keyword `{word}`"))
                    .at(span, format!("did you mean `{meant}`?"))
                    .fix(format!("write `{meant}`"), span, *meant, false),
            );
            self.scan.masked.replace_range(token.start..token.end, &"@".repeat(token.end - token.start));
            self.meant.push((i, meant));
        }
    }

    /// True if an item begins at token `index`.
    pub(super) fn item_begins(&self, index: usize) -> bool {
        let word = self.token(index);
        if word == "size" {
            return self.is_word(index + 1) && self.token(index + 2) == "{";
        }
        ITEMS.contains(&word) && self.token(index + 1) != "="
    }

    /// True if a keyword begins an item or a statement at token `index`. Before `=` it is meant as the name of an argument, as in
    /// `sum(x, dim = 1)`.
    pub(super) fn keyword_begins(&self, index: usize) -> bool {
        is_keyword(self.token(index)) && self.token(index + 1) != "="
    }

    /// Whether `name =` begins a line at token `index`.
    pub(super) fn assignment_leads(&self, index: usize) -> bool {
        self.is_word(index)
            && self.token(index + 1) == "="
            && self.scan.tokens.get(index).is_some_and(|t| t.leads)
    }
}
