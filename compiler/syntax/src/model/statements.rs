//! Blocks: the statements of layers and models, the lines of train blocks, the entries of sizes.

use meshwright_diag::foreign::{WordPlace, advice};
use meshwright_diag::{Diagnostic, Span, codes};
use pest::iterators::Pair;

use super::Parser;
use super::expr::{Builder, parts};
use super::grammar::Rule;
use super::keywords::{SETTINGS, STATEMENTS, is_keyword};
use crate::ast::{
    Arg, Better, Binding, Call, Expr, Input, Metric, Minimize, Name, ParamGroup, Repeat, Statement,
    StatementKind, TrainKind, TrainSetting, Variable,
};

impl Parser<'_> {
    /// The statements up to the `}` that closes `open`, which the walk is behind.
    pub(super) fn body(&mut self, open: Span) -> Vec<Statement> {
        let mut out = Vec::new();
        while !self.block_ends(open) {
            let first = self.at;
            let word = self.token(first).to_string();
            let keyword = STATEMENTS.contains(&word.as_str()) && (word != "scan" || self.scans(first));
            if keyword {
                self.at += 1;
            } else if !self.is_word(first) || !matches!(self.token(first + 1), "=" | ",") {
                let d = if SETTINGS.contains(&word.as_str()) {
                    "a statement (this one belongs in a `train` block)"
                } else {
                    "a statement such as `let`"
                };
                self.unexpected(first, &[d]);
                if advice(WordPlace::Statement, &word).is_some() {
                    self.skip_block(first);
                    continue;
                }
                self.at += 1;
                self.recover(first, Self::begins);
                continue;
            }
            match self.statement(if keyword { &word } else { "" }) {
                Some(kind) => out.push(Statement { kind, span: self.since(first) }),
                // The statement is right, and the next one is of another language.
                None if self.foreign(self.at) => self.skip_block(self.at),
                None => self.recover(first, Self::begins),
            }
        }
        out
    }

    /// True if a line begins with a statement of another language.
    fn foreign(&self, index: usize) -> bool {
        let leads = self.scan.tokens.get(index).is_some_and(|t| t.leads);
        leads && advice(WordPlace::Statement, self.token(index)).is_some()
    }

    /// True if a `scan` that begins a statement is the keyword, and not a name.
    fn scans(&self, at: usize) -> bool {
        self.token(at) == "scan" && !matches!(self.token(at + 1), "=" | ",")
    }

    /// True if a statement can begin at token `index`.
    fn begins(&self, index: usize) -> bool {
        let leads = self.scan.tokens.get(index).is_some_and(|t| t.leads);
        self.keyword_begins(index) || self.assignment_leads(index) || leads && self.scans(index)
    }

    fn statement(&mut self, word: &str) -> Option<StatementKind> {
        match word {
            "let" => self.parse(Rule::assign, |b, p| {
                let (names, value) = assign(b, p)?;
                Some(StatementKind::Let { names, value })
            }),
            "param" => self.parse(Rule::variable, variable).map(StatementKind::Param),
            "state" => self.parse(Rule::variable, variable).map(StatementKind::State),
            "input" => self.parse(Rule::input, input).map(StatementKind::Input),
            "loss" => self.parse(Rule::bound, bound).map(StatementKind::Loss),
            "metric" => self.parse(Rule::metric, metric).map(StatementKind::Metric),
            "output" => self.parse(Rule::bound, bound).map(StatementKind::Output),
            "return" => self.parse(Rule::returned, |b, p| {
                parts(p).map(|p| b.expr(p)).collect::<Option<_>>().map(StatementKind::Return)
            }),
            "repeat" | "scan" => {
                let keyword = self.at - 1;
                let scan = word == "scan";
                let head = self.parse(Rule::repeated, |b, p| Some(b.names(p)));
                let Some(names) = head else {
                    if !self.broken_block() && self.indented(keyword) {
                        // A block as in other languages.
                        self.body(self.span(keyword));
                    }
                    return None;
                };
                let body = self.body(self.span(self.at - 1));
                let mut names = names.into_iter();
                let (dim, index) = (names.next()?, names.next());
                Some(StatementKind::Repeat(Repeat { scan, dim, index, body }))
            }
            _ => self.parse(Rule::assign, |b, p| {
                let (names, value) = assign(b, p)?;
                Some(StatementKind::Assign { names, value })
            }),
        }
    }

    /// After a head that did not parse: its block is read all the same, for the mistakes in it. False where it has none.
    pub(super) fn broken_block(&mut self) -> bool {
        let found = self.seek_brace();
        if found {
            self.body(self.span(self.at - 1));
        }
        found
    }

    /// Moves behind the next `{`, unless a keyword, a further statement or `}` comes first.
    pub(super) fn seek_brace(&mut self) -> bool {
        let mut at = self.at;
        while at < self.scan.tokens.len() && !is_keyword(self.token(at)) && self.token(at) != "}" {
            at += 1;
            if self.token(at - 1) == "{" {
                self.at = at;
                return true;
            }
        }
        false
    }

    /// Whether there is a block without its `{`, to which the walk then moves: the line ends it, or the next line stands further
    /// right than that of token `first`.
    fn indented(&mut self, first: usize) -> bool {
        let next = (self.at..self.scan.tokens.len()).find(|i| self.scan.tokens[*i].leads);
        if (self.at..next.unwrap_or(self.scan.tokens.len())).any(|i| self.token(i) == "}") {
            return true;
        }
        let Some(next) = next.filter(|i| self.column(*i) > self.column(first)) else { return false };
        self.at = next;
        true
    }

    /// The place of a token in its line.
    fn column(&self, index: usize) -> usize {
        let start = self.scan.tokens[index].start;
        start - self.scan.masked[..start].rfind('\n').map_or(0, |n| n + 1)
    }

    /// The lines of a train block.
    pub(super) fn settings(&mut self, open: Span) -> Vec<TrainSetting> {
        let mut out = Vec::new();
        while !self.block_ends(open) {
            let first = self.at;
            let word = self.token(first).to_string();
            let kind = if SETTINGS.contains(&word.as_str()) {
                self.at += 1;
                self.setting(&word)
            } else {
                self.unexpected(first, &["`minimize`", "`optimizer`", "another setting"]);
                self.at += 1;
                None
            };
            match kind {
                Some(kind) => {
                    out.push(TrainSetting { kind, span: self.since(first) });
                    // As in other languages, settings on one line may be separated.
                    while self.token(self.at) == ";" {
                        self.at += 1;
                    }
                }
                None => self.recover(first, |p, i| SETTINGS.contains(&p.token(i)) && p.scan.tokens[i].leads),
            }
        }
        out
    }

    fn setting(&mut self, word: &str) -> Option<TrainKind> {
        match word {
            "minimize" => self.parse(Rule::minimize, minimize),
            "group" => {
                let head = self.parse(Rule::group_head, |b, p| Some(b.globs(parts(p).next()?)));
                let Some(of) = head else {
                    if self.seek_brace() {
                        self.settings(self.span(self.at - 1));
                    }
                    return None;
                };
                let settings = self.settings(self.span(self.at - 1));
                Some(TrainKind::Group(ParamGroup { of, settings }))
            }
            "ema" => self.parse(Rule::ema, |b, p| {
                let mut inner = parts(p);
                let decay = b.expr(inner.next()?)?;
                Some(TrainKind::Ema { decay, of: inner.next().map_or(Vec::new(), |p| b.globs(p)) })
            }),
            "precision" => self.parse(Rule::precision, call).map(TrainKind::Precision),
            "optimizer" => self.parse(Rule::optimizer, call).map(TrainKind::Optimizer),
            "clip" => self.parse(Rule::clip, call).map(TrainKind::Clip),
            "freeze" => self.parse(Rule::freeze, |b, p| Some(TrainKind::Freeze(b.globs(parts(p).next()?)))),
            _ => self.parse(Rule::decay, |b, p| {
                let (mut value, mut except) = (None, Vec::new());
                for part in parts(p) {
                    match part.as_rule() {
                        Rule::globs => except = b.globs(part),
                        _ => value = Some(b.expr(part)?),
                    }
                }
                Some(TrainKind::WeightDecay { value, except })
            }),
        }
    }

    /// The entries of a `size` block.
    pub(super) fn entries(&mut self, open: Span) -> Vec<Binding> {
        let mut out = Vec::new();
        while !self.block_ends(open) {
            let first = self.at;
            match self.parse(Rule::preset_entry, |b, p| binding(b, parts(p).next()?)) {
                Some(entry) => out.push(entry),
                None => {
                    self.at = self.at.max(first + 1);
                    self.recover(first, |p, i| p.assignment_leads(i));
                }
            }
        }
        out
    }

    /// True if the block ends here; moves behind its `}`. Reports a missing `}`.
    fn block_ends(&mut self, open: Span) -> bool {
        if self.token(self.at) == "}" {
            self.at += 1;
            return true;
        }
        if !self.done() && !self.item_begins(self.at) {
            return false;
        }
        let before = self.span(self.at.saturating_sub(1));
        let end = Span { start: before.end, ..before };
        let (what, here) =
            crate::report::found(self.file, self.text, &self.scan, self.at, "the end of the file");
        self.diagnostics.push(
            Diagnostic::error(codes::E0101, format!("expected `}}`, found {what}"))
                .at(here, "the block must be closed before this")
                .and(open, "it begins here")
                .fix("close it", end, "\n}", false),
        );
        true
    }

    /// Moves behind a statement of another language: what is in its braces, or further right than the word that begins it.
    fn skip_block(&mut self, first: usize) {
        let indent = self.column(first);
        let mut open = 0;
        self.at = first + 1;
        while !self.done() {
            let leads = self.scan.tokens[self.at].leads;
            match self.token(self.at) {
                "else" | "elif" => {}
                _ if open == 0 && leads && self.column(self.at) <= indent => return,
                "}" if open == 0 => return,
                "{" => open += 1,
                "}" => open -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Moves to where the walk can go on after a statement that began at token `first` failed: a token that
    /// `begins` another, an item, or the `}` that closes the block. `name =` counts only outside of brackets.
    fn recover(&mut self, first: usize, begins: impl Fn(&Self, usize) -> bool) {
        let (mut brackets, mut braces) = (0i64, 0i64);
        for i in first..self.scan.tokens.len() {
            let token = self.token(i);
            if i >= self.at && i > first {
                let named = self.assignment_leads(i);
                if (begins(self, i) && (!named || brackets <= 0)) || self.item_begins(i) {
                    self.at = i;
                    return;
                }
                if token == "}" && braces <= 0 {
                    self.at = i;
                    return;
                }
            }
            match token {
                "(" | "[" => brackets += 1,
                ")" | "]" => brackets -= 1,
                "{" if i >= self.at => braces += 1,
                "}" if i >= self.at => braces -= 1,
                _ => {}
            }
        }
        self.at = self.scan.tokens.len();
    }
}

fn assign(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<(Vec<Name>, Expr)> {
    let mut inner = parts(pair);
    let names = b.names(inner.next()?);
    Some((names, b.expr(inner.next()?)?))
}

/// `name = value` of a `binding` rule.
pub(super) fn binding(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Binding> {
    let span = b.span(&pair);
    let mut inner = parts(pair);
    let name = b.name(&inner.next()?);
    Some(Binding { name, value: b.expr(inner.next()?)?, span })
}

fn bound(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Binding> {
    binding(b, parts(pair).next()?)
}

fn metric(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Metric> {
    let mut inner = parts(pair).peekable();
    let better = inner.next_if(|p| p.as_rule() == Rule::better);
    let better = better.and_then(|p| Better::of(p.as_str().trim_end()));
    Some(Metric { better, binding: binding(b, inner.next()?)? })
}

fn variable(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Variable> {
    let mut inner = parts(pair).peekable();
    let name = b.name(&inner.next()?);
    let dims = inner.next_if(|p| p.as_rule() == Rule::dims).map_or(Vec::new(), |p| b.names(p));
    let dtype = inner.next_if(|p| p.as_rule() == Rule::dtype).map(|p| b.name(&p));
    Some(Variable { name, dims, dtype, init: b.expr(inner.next()?)? })
}

fn input(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Input> {
    let mut inner = parts(pair).peekable();
    let name = b.name(&inner.next()?);
    let dims = inner.next_if(|p| p.as_rule() == Rule::dims).map_or(Vec::new(), |p| b.names(p));
    let dtype = b.name(&inner.next()?);
    Some(Input { name, dims, dtype, range: inner.next().map(|p| b.name(&p)) })
}

/// `g_loss of gen.* every 2 from 1`.
fn minimize(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<TrainKind> {
    let mut inner = parts(pair);
    let loss = b.name(&inner.next()?);
    let mut out = Minimize { loss, of: Vec::new(), every: None, from: None };
    for part in inner {
        if part.as_rule() == Rule::globs {
            out.of = b.globs(part);
            continue;
        }
        let mut turn = parts(part);
        out.every = Some(b.expr(turn.next()?)?);
        if let Some(from) = turn.next() {
            out.from = Some(b.expr(from)?);
        }
    }
    Some(TrainKind::Minimize(out))
}

/// `name(args)`, `name = value` or `name` of a train block, as a call.
fn call(b: &mut Builder<'_>, pair: Pair<'_, Rule>) -> Option<Call> {
    let mut inner = parts(pair);
    let name = b.name(&inner.next()?);
    let args = match inner.next() {
        None => Vec::new(),
        Some(p) if p.as_rule() == Rule::args => b.args(p)?.0,
        Some(p) => vec![Arg { name: None, value: b.expr(p)?, within: None }],
    };
    Some(Call { name, args, label: None })
}
