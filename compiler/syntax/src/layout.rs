//! The parser of layout files. Lines, and parts between `;`, are parsed one by one: a mistake in one hides none
//! in another.

use meshwright_diag::foreign::WordPlace;
use meshwright_diag::{Diagnostic, FileId, Outcome, Span, codes, has_errors, nearest};
use pest::Parser as _;
use pest::iterators::Pair;

use crate::ast::{
    AxisDecl, DimPattern, LayoutFile, LayoutItem, LayoutKind, MeshDecl, Name, PathGlob, ReduceWhen, Scope,
    ScopeKind,
};
use crate::layout::grammar::{Grammar, Rule, words};
use crate::report;
use crate::scan::{Language, Scan, TokenKind, scan};

mod grammar {
    //! The generated parser of layout files, and its rules in users' words.

    #[derive(pest_derive::Parser)]
    #[grammar = "layout.pest"]
    pub(crate) struct Grammar;

    /// What a rule is to a user; `None` for what no message should mention.
    pub(crate) fn words(rule: &Rule) -> Option<&'static str> {
        Some(match rule {
            Rule::name | Rule::axes => "a name",
            Rule::axis => "an axis",
            Rule::dim => "a dim",
            Rule::star => "`*`",
            Rule::word => "a schedule such as `1f1b`",
            Rule::count => "a whole number",
            Rule::glob => "a parameter path",
            Rule::comma => "`,`",
            Rule::colon => "`:`",
            Rule::equals => "`=`",
            Rule::arrow => "`->`",
            Rule::whole => "`-`",
            Rule::when_free => "`when free`",
            Rule::setting | Rule::settings => "a setting",
            Rule::kw_mesh => "`mesh`",
            Rule::kw_gather => "`gather`",
            Rule::kw_ring => "`ring`",
            Rule::kw_order => "`order`",
            Rule::kw_micro => "`microbatches`",
            Rule::kw_schedule => "`schedule`",
            Rule::kw_chunks => "`chunks`",
            Rule::kw_stages => "`stages`",
            Rule::kw_recompute => "`recompute`",
            Rule::kw_keep => "`keep`",
            Rule::kw_params => "`params`",
            Rule::kw_reduce => "`reduce`",
            Rule::kw_in => "`in`",
            Rule::kw_by => "`by`",
            Rule::once => "`once`",
            Rule::parted => "`part`",
            Rule::reduced => "`grads`",
            Rule::kw_zigzag => "`zigzag`",
            Rule::stored => "`bf16`",
            Rule::placed | Rule::scope => "a dim",
            Rule::EOI => "the end of the line",
            _ => return None,
        })
    }
}

const SETTINGS: [&str; 11] = [
    "mesh",
    "gather",
    "ring",
    "order",
    "microbatches",
    "schedule",
    "chunks",
    "stages",
    "recompute",
    "keep",
    "reduce",
];

/// Words within rules and settings: before `:`, behind the axes, and behind `order`, `keep` and `reduce`.
const WITHIN: [&str; 9] = ["params", "grads", "moments", "zigzag", "when", "free", "in", "once", "by"];

/// Every word of layout files that has a meaning of its own in some place.
pub fn layout_keywords() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().chain(&WITHIN).copied()
}

/// Parses a layout file, or rules as the command line gives them. `None` if there is any error.
pub fn parse_layout(file: FileId, text: &str) -> Outcome<LayoutFile> {
    let (tree, diagnostics) = read_layout(file, text);
    (if has_errors(&diagnostics) { None } else { Some(tree) }, diagnostics)
}

/// The same for an editor: the lines that could be read, whether others have errors or not.
pub fn read_layout(file: FileId, text: &str) -> (LayoutFile, Vec<Diagnostic>) {
    report::limit_calls();
    let mut diagnostics = Vec::new();
    let Some(scanned) = scan(file, text, Language::Layout, &mut diagnostics) else {
        return (LayoutFile::default(), diagnostics);
    };
    let mut parser = Parser { file, text, scan: &scanned, diagnostics };
    let mut items = Vec::new();
    let mut from = 0;
    for (i, token) in scanned.tokens.iter().enumerate() {
        if token.leads && i > from {
            parser.line(from, i, &mut items);
            from = i;
        }
        if &scanned.masked[token.start..token.end] == ";" {
            parser.line(from, i, &mut items);
            from = i + 1;
        }
        if parser.diagnostics.len() >= crate::MAX_ERRORS {
            break;
        }
    }
    if parser.diagnostics.len() < crate::MAX_ERRORS {
        parser.line(from, scanned.tokens.len(), &mut items);
    }
    (LayoutFile { items }, parser.diagnostics)
}

struct Parser<'a> {
    file: FileId,
    text: &'a str,
    scan: &'a Scan,
    diagnostics: Vec<Diagnostic>,
}

/// The parts of a rule that mean something.
fn parts(pair: Pair<'_, Rule>) -> impl Iterator<Item = Pair<'_, Rule>> {
    use Rule::{EOI, arrow, colon, comma, equals};
    use Rule::{
        kw_by, kw_chunks, kw_gather, kw_in, kw_keep, kw_mesh, kw_micro, kw_order, kw_params, kw_recompute,
        kw_reduce, kw_ring, kw_schedule, kw_stages, kw_zigzag,
    };
    pair.into_inner().filter(|p| {
        !matches!(
            p.as_rule(),
            EOI | arrow
                | colon
                | comma
                | equals
                | kw_gather
                | kw_mesh
                | kw_micro
                | kw_by
                | kw_in
                | kw_keep
                | kw_params
                | kw_recompute
                | kw_reduce
                | kw_ring
                | kw_order
                | kw_schedule
                | kw_chunks
                | kw_stages
                | kw_zigzag
        )
    })
}

impl Parser<'_> {
    fn token(&self, index: usize, until: usize) -> &str {
        let token = (index < until).then(|| self.scan.tokens[index]);
        token.map_or("", |t| &self.scan.masked[t.start..t.end])
    }

    fn tokens(&self, from: usize, until: usize) -> Span {
        Span::new(self.file, self.scan.tokens[from].start, self.scan.tokens[until - 1].end)
    }

    /// Parses tokens `from..until`, the part of a line between two `;`.
    fn line(&mut self, from: usize, until: usize, items: &mut Vec<LayoutItem>) {
        if from >= until {
            return;
        }
        let second = self.token(from + 1, until);
        // `recompute *` is a setting, and `recompute*: …` a rule with a path.
        let path = second == "*" && self.scan.tokens[from].end == self.scan.tokens[from + 1].start;
        let setting =
            SETTINGS.contains(&self.token(from, until)) && !path && !matches!(second, "->" | "," | ":" | ".");
        let rule = if setting { Rule::settings } else { Rule::placed };
        let (start, end) = (self.scan.tokens[from].start, self.scan.tokens[until - 1].end);
        match Grammar::parse(rule, &self.scan.masked[start..end]) {
            Ok(mut pairs) => {
                let Some(pair) = pairs.next() else { return };
                if setting {
                    for p in parts(pair) {
                        let span = self.span(&p, start);
                        let kind = parts(p).next().and_then(|p| self.setting(p, start));
                        items.extend(kind.map(|kind| LayoutItem { kind, span }));
                    }
                } else {
                    let span = self.span(&pair, start);
                    items.push(LayoutItem { kind: LayoutKind::Rule(self.rule(pair, start)), span });
                }
            }
            Err(error) => {
                let d = match report::failure(&error, start, words) {
                    (Some(place), expected) => self.explain(from, until, place, &expected),
                    (None, _) => report::too_much_work(self.tokens(from, until)),
                };
                self.diagnostics.push(d);
            }
        }
    }

    fn span(&self, pair: &Pair<'_, Rule>, base: usize) -> Span {
        let start = base + pair.as_span().start();
        Span::new(self.file, start, start + pair.as_str().trim_end().len())
    }

    fn name(&self, pair: &Pair<'_, Rule>, base: usize) -> Name {
        Name { text: pair.as_str().trim_end().to_string(), span: self.span(pair, base) }
    }

    fn names(&self, pair: Pair<'_, Rule>, base: usize) -> Vec<Name> {
        parts(pair).map(|p| self.name(&p, base)).collect()
    }

    fn glob(&self, pair: &Pair<'_, Rule>, base: usize) -> PathGlob {
        PathGlob { text: pair.as_str().to_string(), span: self.span(pair, base) }
    }

    fn rule(&self, pair: Pair<'_, Rule>, base: usize) -> crate::ast::Rule {
        let mut rule =
            crate::ast::Rule { scope: Scope::default(), dims: Vec::new(), axes: Vec::new(), when_free: None };
        for part in parts(pair) {
            let span = self.span(&part, base);
            match part.as_rule() {
                Rule::scope => {
                    for p in parts(part) {
                        let span = self.span(&p, base);
                        match (p.as_rule(), p.as_str().trim_end()) {
                            (Rule::kind, "params") => rule.scope.kind = Some((ScopeKind::Params, span)),
                            (Rule::kind, "grads") => rule.scope.kind = Some((ScopeKind::Grads, span)),
                            (Rule::kind, _) => rule.scope.kind = Some((ScopeKind::Moments, span)),
                            _ => rule.scope.path = Some(self.glob(&p, base)),
                        }
                    }
                }
                Rule::dim if part.as_str().starts_with('*') => rule.dims.push(DimPattern::Any(span)),
                Rule::dim => rule.dims.push(DimPattern::Dim(self.name(&part, base))),
                Rule::axes => rule.axes = self.names(part, base),
                Rule::when_free => rule.when_free = Some(span),
                _ => {}
            }
        }
        rule
    }

    fn setting(&mut self, pair: Pair<'_, Rule>, base: usize) -> Option<LayoutKind> {
        let span = self.span(&pair, base);
        Some(match pair.as_rule() {
            Rule::mesh => {
                let mut axes = Vec::new();
                for axis in parts(pair) {
                    let mut inner = parts(axis);
                    let name = self.name(&inner.next()?, base);
                    let (size, size_span) = self.count(&inner.next()?, base)?;
                    axes.push(AxisDecl { name, size, size_span });
                }
                LayoutKind::Mesh(MeshDecl { axes, span })
            }
            Rule::gather => LayoutKind::Gather(self.names(pair, base)),
            Rule::ring => LayoutKind::Ring(self.names(pair, base)),
            Rule::order => {
                let mut names = self.names(pair, base);
                let axes = names.split_off(1);
                LayoutKind::Order { dim: names.pop()?, axes }
            }
            Rule::microbatches => {
                let (count, count_span) = self.count(&parts(pair).next()?, base)?;
                LayoutKind::Microbatches { count, count_span }
            }
            Rule::schedule => LayoutKind::Schedule(self.name(&parts(pair).next()?, base)),
            Rule::chunks => {
                let (count, count_span) = self.count(&parts(pair).next()?, base)?;
                LayoutKind::Chunks { count, count_span }
            }
            Rule::stages => {
                let counts: Option<Vec<(u64, Span)>> = parts(pair).map(|p| self.count(&p, base)).collect();
                LayoutKind::Stages(counts?)
            }
            Rule::keep => LayoutKind::KeepParams(parts(pair).map(|p| self.glob(&p, base)).collect()),
            Rule::reduce => self.reduce(pair, base)?,
            _ => LayoutKind::Recompute(parts(pair).map(|p| self.glob(&p, base)).collect()),
        })
    }

    /// `reduce grads in bf16`: nothing else is reduced in another dtype, and in no other. `reduce grads once` or
    /// `reduce grads by part`: nothing else is reduced at another time.
    fn reduce(&mut self, pair: Pair<'_, Rule>, base: usize) -> Option<LayoutKind> {
        let mut words = parts(pair);
        let (reduced, how) = (self.name(&words.next()?, base), words.next()?);
        let (rule, how) = (how.as_rule(), self.name(&how, base));
        let (kind, meant, what, other) = match rule {
            Rule::once => (LayoutKind::ReduceWhen(ReduceWhen::Once), "once", "at another time", ""),
            Rule::parted => {
                let other = "gradients are reduced `once` or `by part`";
                (LayoutKind::ReduceWhen(ReduceWhen::ByPart), "part", "at another time", other)
            }
            _ => {
                let other = "gradients may be reduced in `bf16` alone";
                (LayoutKind::ReduceGrads, "bf16", "in another dtype than their own", other)
            }
        };
        let first = format!("only gradients may be reduced {what}");
        let cases = [(&reduced, "grads", first.as_str()), (&how, meant, other)];
        let mut sound = true;
        for (name, meant, message) in cases.into_iter().filter(|(name, meant, _)| name.text != *meant) {
            sound = false;
            let found = format!("expected `{meant}`, found `{}`", name.text);
            let d = Diagnostic::error(codes::E0101, message).at(name.span, found);
            self.diagnostics.push(d.fix(format!("write `{meant}`"), name.span, meant, false));
        }
        sound.then_some(kind)
    }

    fn count(&mut self, pair: &Pair<'_, Rule>, base: usize) -> Option<(u64, Span)> {
        let span = self.span(pair, base);
        let value = whole_number(pair.as_str());
        if value.is_none() {
            self.diagnostics.push(too_large(span));
        }
        Some((value?, span))
    }

    /// The message for a part that does not parse, with what its author may have had in mind.
    fn explain(&self, from: usize, until: usize, place: usize, expected: &[&str]) -> Diagnostic {
        let whole = self.tokens(from, until);
        let first = self.token(from, until);
        let second = self.token(from + 1, until);
        if self.token(until - 1, until) == ":" {
            return Diagnostic::error(codes::E0101, "a scope without a rule")
                .at(whole, "nothing follows on this line")
                .help(format!(
                    "write the rule behind it: `{} * -> axis`",
                    &self.text[self.range(from, until)]
                ));
        }
        if self.scan.tokens[from].kind == TokenKind::Word
            && !SETTINGS.contains(&first)
            && self.scan.tokens.get(from + 1).is_some_and(|t| from + 1 < until && t.kind != TokenKind::Sign)
            && let Some(meant) = nearest(first, SETTINGS)
        {
            let span = self.tokens(from, from + 1);
            return Diagnostic::error(codes::E0101, format!("there is no keyword `{first}`"))
                .at(span, format!("did you mean `{meant}`?"))
                .fix(format!("write `{meant}`"), span, meant, meant.sure);
        }
        let index = self.scan.tokens.partition_point(|t| t.start < place).min(until);
        let d = if index < until {
            report::unexpected(self.file, self.text, self.scan, index, expected, "", WordPlace::LayoutSign)
        } else {
            let wanted = report::one_of(expected);
            let end = Span { start: whole.end, ..whole };
            let stop = if self.scan.tokens.get(until).is_some_and(|t| !t.leads) {
                "`;`"
            } else {
                "the end of the line"
            };
            Diagnostic::error(codes::E0101, format!("expected {wanted}, found {stop}"))
                .at(end, format!("expected {wanted}"))
        };
        let bare = until == from + 3 && self.scan.tokens[from + 2].kind == TokenKind::Word;
        if bare && matches!(second, ":" | "=") && self.scan.tokens[from].kind == TokenKind::Word {
            let fixed = format!("{first} -> {}", self.token(from + 2, until));
            return d.fix(format!("if a rule is meant, write `{fixed}`"), whole, fixed, false);
        }
        d
    }

    fn range(&self, from: usize, until: usize) -> std::ops::Range<usize> {
        self.scan.tokens[from].start..self.scan.tokens[until - 1].end
    }
}

/// The value of `10_000`.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

pub(crate) fn too_large(span: Span) -> Diagnostic {
    Diagnostic::error(codes::E0105, "this number is too large")
        .at(span, "")
        .note("integers end at 18446744073709551615")
}

#[cfg(test)]
mod keyword_tests {
    use meshwright_sorted::SortedSet;

    #[test]
    fn the_keywords_are_those_of_the_grammar() {
        let grammar = include_str!("layout.pest").split('"').skip(1).step_by(2);
        let words = grammar.filter(|w| w.len() > 1 && w.chars().all(|c| c.is_ascii_lowercase()));
        assert_eq!(words.collect::<SortedSet<_>>(), super::layout_keywords().collect());
    }
}
