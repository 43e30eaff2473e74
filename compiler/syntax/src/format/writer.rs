//! The tokens of a text handed on in order, with the comments between them.

use super::doc::{Group, Op, print};
use super::runs::RowPart;
use crate::scan::{Comment, Scan};

/// Hands on tokens as layout operations.
pub(super) struct Writer<'a> {
    text: &'a str,
    scan: &'a Scan,
    /// Number of the next token.
    at: usize,
    /// Number of the next comment.
    comment: usize,
    /// End of the last token or comment that was handed on or dropped.
    end: usize,
    /// End of the last token that was handed on.
    taken: usize,
    /// True if a dropped token had an empty line before it.
    gap: bool,
    /// The document so far.
    ops: Vec<Op>,
    /// The blanks at each `Op::Pad`.
    pub(super) pads: Vec<usize>,
    /// True if tree and tokens disagreed.
    wrong: bool,
}

/// A comment in the one style: a blank behind its mark where a word follows, none at its end.
pub(super) fn comment(text: &str) -> String {
    let text = text.trim_end();
    let mark = ["//!", "///", "//"].into_iter().find(|m| text.starts_with(m)).unwrap_or("");
    let body = &text[mark.len()..];
    let blank = if body.starts_with(char::is_alphanumeric) { " " } else { "" };
    format!("{mark}{blank}{body}")
}

impl<'a> Writer<'a> {
    pub(super) fn new(text: &'a str, scan: &'a Scan) -> Self {
        Writer {
            text,
            scan,
            at: 0,
            comment: 0,
            end: 0,
            taken: 0,
            gap: false,
            ops: Vec::new(),
            pads: Vec::new(),
            wrong: false,
        }
    }

    /// The text, if all tokens and comments are in it.
    pub(super) fn finish(self) -> Option<String> {
        let all = self.at == self.scan.tokens.len() && self.comment == self.scan.comments.len();
        (all && !self.wrong).then(|| print(&self.ops, &self.pads))
    }

    /// The begin of the next part of a statement in the document.
    pub(super) fn mark(&self) -> usize {
        self.ops.len()
    }

    /// Ends the part that began at `mark`, and leaves room behind it.
    pub(super) fn part(&mut self, mark: usize) -> RowPart {
        let pad = self.pads.len();
        let width = width(&self.ops[mark..]);
        self.ops.push(Op::Pad(pad));
        self.pads.push(0);
        RowPart { width, pad }
    }

    /// The next token; empty behind the last.
    pub(super) fn peek(&self) -> &'a str {
        self.peek_at(0)
    }

    /// The token `ahead` of the next one.
    pub(super) fn peek_at(&self, ahead: usize) -> &'a str {
        self.scan.tokens.get(self.at + ahead).map_or("", |t| &self.text[t.start..t.end])
    }

    /// The begin of the next token.
    pub(super) fn start(&self) -> usize {
        self.start_at(0)
    }

    fn start_at(&self, ahead: usize) -> usize {
        self.scan.tokens.get(self.at + ahead).map_or(self.text.len(), |t| t.start)
    }

    /// The next comment, if it stands before byte `until`.
    fn comment_before(&self, until: usize) -> Option<Comment> {
        self.scan.comments.get(self.comment).copied().filter(|c| c.start < until)
    }

    /// True if a comment stands before the token `ahead` of the next one.
    pub(super) fn commented(&self, ahead: usize) -> bool {
        self.comment_before(self.start_at(ahead)).is_some()
    }

    /// Whether a comment stands between here and the next token that is `sign`.
    pub(super) fn commented_until(&self, sign: &str) -> bool {
        let ahead = (0..).take_while(|i| !["", sign].contains(&self.peek_at(*i))).count();
        self.commented(ahead)
    }

    /// Hands on the next token, before it the comments that stand there, behind it the one on its line.
    pub(super) fn take(&mut self) {
        let Some(token) = self.scan.tokens.get(self.at).copied() else {
            self.wrong = true;
            return;
        };
        self.take_until(token.end);
    }

    /// Hands on all tokens that begin before byte `end` as one text.
    pub(super) fn take_until(&mut self, end: usize) {
        let from = self.start();
        while let Some(c) = self.comment_before(from) {
            self.own(c);
        }
        let count = self.scan.tokens[self.at..].partition_point(|t| t.start < end);
        let Some(last) = count.checked_sub(1).map(|n| self.scan.tokens[self.at + n]) else {
            self.wrong = true;
            return;
        };
        self.ops.push(Op::Text(self.text[from..last.end].to_string()));
        self.at += count;
        (self.end, self.taken, self.gap) = (last.end, last.end, false);
        self.trailing();
    }

    /// The comment behind the last token on its line.
    fn trailing(&mut self) {
        if let Some(c) = self.comment_before(self.start())
            && self.taken > 0
            && !self.text[self.taken..c.start].contains('\n')
        {
            self.ops.push(Op::Trailing(comment(&self.text[c.start..c.end])));
            self.comment += 1;
            self.end = c.end;
        }
    }

    fn own(&mut self, c: Comment) {
        self.ops.push(Op::Own(comment(&self.text[c.start..c.end])));
        self.comment += 1;
        self.end = c.end;
    }

    /// Hands on the next token, which must be `token`.
    pub(super) fn word(&mut self, token: &str) {
        self.wrong |= self.peek() != token;
        self.take();
    }

    /// Leaves out the next token.
    pub(super) fn skip(&mut self) {
        if let Some(token) = self.scan.tokens.get(self.at) {
            self.gap |= self.gap_before(token.start);
            self.at += 1;
            self.end = token.end;
            self.trailing();
        }
    }

    /// Puts a text that the source lacks behind the last token, before its comment.
    pub(super) fn insert(&mut self, text: &str) {
        if let Some(at) = self.ops.iter().rposition(|op| matches!(op, Op::Text(_))) {
            self.ops.insert(at + 1, Op::Text(text.to_string()));
        }
    }

    fn gap_before(&self, start: usize) -> bool {
        self.gap || self.text[self.end..start].matches('\n').count() > 1
    }

    /// Begins a line: first the comments before the next token, each on a line of its own, empty lines kept but for
    /// one at the beginning (`first`). Says whether anything separates the line from the one before.
    pub(super) fn line(&mut self, first: bool) -> bool {
        let (separate, first) = self.comments(first);
        let gap = self.gap_before(self.start()) && !first;
        self.ops.push(if gap { Op::Empty } else { Op::Line });
        separate || gap
    }

    /// Ends a block or a file: the comments before its end, then a new line.
    pub(super) fn last_line(&mut self, first: bool) {
        self.comments(first);
        self.ops.push(Op::Line);
    }

    fn comments(&mut self, mut first: bool) -> (bool, bool) {
        let mut any = false;
        while let Some(c) = self.comment_before(self.start()) {
            let gap = self.gap_before(c.start) && !first;
            self.ops.push(if gap { Op::Empty } else { Op::Line });
            self.own(c);
            (any, first, self.gap) = (true, false, false);
        }
        (any, first)
    }

    pub(super) fn blank(&mut self) {
        self.ops.push(Op::Blank);
    }

    pub(super) fn push(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// `count` elements with commas between them, and none behind the last unless a comment follows it.
    pub(super) fn list(&mut self, count: usize, mut element: impl FnMut(&mut Self, usize)) {
        self.ops.push(Op::Align);
        self.ops.push(Op::Open(Group::Fill));
        for i in 0..count {
            element(self, i);
            let closes = self.peek() == "," && [")", "]", ";"].contains(&self.peek_at(1));
            // Without its comma, a comment behind it could read as a divisor of the element.
            if i + 1 < count || closes && self.commented(1) {
                self.word(",");
                self.ops.push(Op::Break);
            } else if closes {
                self.skip();
            }
        }
        self.ops.push(Op::Close);
        self.ops.push(Op::End);
    }
}

/// Characters of a part on one line; `None` where a comment stands in it.
fn width(ops: &[Op]) -> Option<usize> {
    let mut sum = 0;
    for op in ops {
        match op {
            Op::Text(text) => sum += text.chars().count(),
            Op::Blank | Op::Break => sum += 1,
            Op::Trailing(_) | Op::Own(_) | Op::Line | Op::Empty => return None,
            Op::Open(_) | Op::Close | Op::Indent | Op::Align | Op::End | Op::Pad(_) => {}
        }
    }
    Some(sum)
}
