//! The parser of model files: walks items and statements, and goes on after an error.
//!
//! The grammar parses one statement at a time. Where one fails, the walk goes on at the next keyword, the next
//! `name =` that begins a line, or the end of the block, so that independent mistakes are all reported.

mod expr;
mod familiar;
mod grammar;
mod items;
mod keyword_repair;
mod keywords;
mod reserved_words;
mod statements;

use meshwright_diag::foreign::WordPlace;
use meshwright_diag::{Diagnostic, FileId, Outcome, Span, codes, has_errors};
use pest::Parser as _;
use pest::iterators::Pair;

use crate::MAX_ERRORS;
use crate::ast::ModelFile;
use crate::division;
use crate::model::expr::Builder;
use crate::model::grammar::{Grammar, Rule};
use crate::report;
use crate::scan::{Language, Scan, TokenKind, scan};

/// Every word of model files that has a meaning of its own in some place.
pub fn keywords() -> impl Iterator<Item = &'static str> {
    let begin = keywords::STATEMENTS.iter().chain(&keywords::ITEMS);
    begin.chain(&keywords::SETTINGS).chain(&keywords::JOINING).copied()
}

/// Parses a model file. `None` if there is any error; the diagnostics then say all that could be found.
pub fn parse_model(file: FileId, text: &str) -> Outcome<ModelFile> {
    let (tree, diagnostics) = read_model(file, text);
    (if has_errors(&diagnostics) { None } else { Some(tree) }, diagnostics)
}

/// The same for an editor: what could be read of a text that is being typed, errors or not. What has an error is left out of the
/// tree.
pub fn read_model(file: FileId, text: &str) -> (ModelFile, Vec<Diagnostic>) {
    report::limit_calls();
    let mut diagnostics = Vec::new();
    let Some(scanned) = scan(file, text, Language::Model, &mut diagnostics) else {
        return (ModelFile::default(), diagnostics);
    };
    division::check(file, text, &scanned, &mut diagnostics);
    let mut parser = Parser { file, text, scan: scanned, meant: Vec::new(), at: 0, diagnostics };
    parser.mend_keywords();
    parser.mend_names();
    let tree = parser.file();
    let mut diagnostics = parser.diagnostics;
    diagnostics.sort_by_key(|d| d.labels.first().map_or(0, |l| l.span.start));
    if diagnostics.len() > MAX_ERRORS {
        diagnostics.truncate(MAX_ERRORS);
        let last = diagnostics.pop();
        diagnostics.extend(last.map(|d| d.note("there are more errors; these are the first")));
    }
    (tree, diagnostics)
}

/// Where the walk stands.
struct Parser<'a> {
    file: FileId,
    text: &'a str,
    scan: Scan,
    /// Tokens that are misspelled keywords, ascending, with the keyword that was meant.
    meant: Vec<(usize, &'static str)>,
    /// Number of the next token.
    at: usize,
    diagnostics: Vec<Diagnostic>,
}

impl Parser<'_> {
    /// The text of token `index`, or what it was meant to be; empty behind the end.
    fn token(&self, index: usize) -> &str {
        if let Ok(found) = self.meant.binary_search_by_key(&index, |m| m.0) {
            return self.meant[found].1;
        }
        self.scan.tokens.get(index).map_or("", |t| &self.scan.masked[t.start..t.end])
    }

    fn is_word(&self, index: usize) -> bool {
        self.scan.tokens.get(index).is_some_and(|t| t.kind == TokenKind::Word)
    }

    fn done(&self) -> bool {
        self.at >= self.scan.tokens.len()
    }

    /// The place of token `index`; behind the end, an empty one behind the last token.
    fn span(&self, index: usize) -> Span {
        report::found(self.file, self.text, &self.scan, index, "").1
    }

    /// From token `first` to the token before the current one.
    fn since(&self, first: usize) -> Span {
        self.span(first).to(self.span(self.at.saturating_sub(1).max(first)))
    }

    fn unexpected(&mut self, index: usize, expected: &[&str]) {
        if let closer @ (")" | "]") = self.token(index)
            && self.open_bracket(index).is_none()
        {
            let message = format!("this `{closer}` closes nothing");
            return self.error(message, index, "no bracket is open here");
        }
        let end = "the end of the file";
        let d = report::unexpected(self.file, self.text, &self.scan, index, expected, end, WordPlace::Sign);
        let d = self.with_spelling(d, index, expected);
        self.diagnostics.push(self.with_context(d, index));
    }

    /// The innermost bracket that is open at token `index`, in its statement.
    fn open_bracket(&self, index: usize) -> Option<usize> {
        let mut closed = 0;
        for i in (0..index).rev() {
            match self.token(i) {
                ")" | "]" => closed += 1,
                "(" | "[" if closed > 0 => closed -= 1,
                "(" | "[" => return Some(i),
                "{" | "}" => return None,
                token if keywords::is_keyword(token) => return None,
                _ => {}
            }
        }
        None
    }

    /// Adds what explains a mistake at token `index`: the open bracket, or the end of the line before, and a
    /// `//` before it on its line.
    fn with_context(&self, mut d: Diagnostic, index: usize) -> Diagnostic {
        let leads = |i: usize| self.scan.tokens.get(i).is_none_or(|t| t.leads);
        let divided = (0..index).rev().take_while(|&i| !leads(i + 1)).any(|i| self.token(i) == "//");
        if divided {
            d = d.note("`//` without blanks is integer division; a comment has a blank before it");
        }
        match self.open_bracket(index) {
            Some(i) => d.and(self.span(i), "this bracket is open"),
            None if index > 0 && leads(index) && index < self.scan.tokens.len() => {
                d.and(self.span(index - 1), "after this")
            }
            None => d,
        }
    }

    /// Matches `rule` from the current token on, builds from it, and moves behind it. Where that fails, the
    /// diagnostic is pushed and the walk moves to the token that did not fit.
    fn parse<T>(
        &mut self,
        rule: Rule,
        build: impl FnOnce(&mut Builder<'_>, Pair<'_, Rule>) -> Option<T>,
    ) -> Option<T> {
        if self.diagnostics.len() >= MAX_ERRORS {
            self.at = self.scan.tokens.len();
            return None;
        }
        let base = self.scan.tokens.get(self.at).map_or(self.scan.masked.len(), |t| t.start);
        let (end, built) = match Grammar::parse(rule, &self.scan.masked[base..]) {
            Ok(mut pairs) => {
                let pair = pairs.next()?;
                let end = base + pair.as_span().end();
                let mut builder = Builder { file: self.file, base, diagnostics: &mut self.diagnostics };
                (end, Ok(build(&mut builder, pair)))
            }
            Err(error) => {
                let (place, expected) = report::failure(&error, base, grammar::words);
                (place.unwrap_or(base), Err((place.is_some(), expected)))
            }
        };
        let from = self.at;
        self.at = self.scan.tokens.partition_point(|t| t.end <= end);
        match built {
            Ok(built) => built,
            Err((true, expected)) => {
                self.unexpected(self.at, &expected);
                None
            }
            Err((false, _)) => {
                self.diagnostics.push(report::too_much_work(self.span(from)));
                self.at = from;
                None
            }
        }
    }

    fn error(&mut self, message: impl Into<String>, index: usize, label: &str) {
        let d = Diagnostic::error(codes::E0101, message).at(self.span(index), label);
        self.diagnostics.push(d);
    }
}
