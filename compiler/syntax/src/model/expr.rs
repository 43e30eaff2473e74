//! From matched rules to expressions.
//!
//! Chains of operators and signs are grouped with a stack of our own, not by recursion, and every tree carries
//! its depth, so that a long chain is refused before dropping or walking it could overflow the stack.

use meshwright_diag::{Diagnostic, FileId, Span, codes};
use pest::iterators::Pair;

use super::grammar::{Rule, is_form};
use crate::MAX_DEPTH;
use crate::ast::{
    Arg, At, BinaryOp, Call, CallLabel, DimItem, DimOp, Expr, ExprKind, Name, PathGlob, UnaryOp,
};

/// Builds trees from what matched in the text from byte `base` on.
pub(crate) struct Builder<'a> {
    pub(crate) file: FileId,
    pub(crate) base: usize,
    pub(crate) diagnostics: &'a mut Vec<Diagnostic>,
}

/// A tree with its depth. `None` everywhere below: a diagnostic has been pushed.
type Deep<T> = Option<(T, usize)>;

/// An operator that waits for its right operand.
enum Waiting {
    Prefix(UnaryOp, Span, u8),
    Infix(BinaryOp, Span),
}

/// How tightly a comparison binds; it does not chain.
const COMPARISON: u8 = 4;

fn tightness(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 1,
        BinaryOp::And => 2,
        BinaryOp::Eq | BinaryOp::Ne | BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge => COMPARISON,
        BinaryOp::Add | BinaryOp::Sub => 5,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::IntDiv | BinaryOp::Rem => 6,
        BinaryOp::Pow => 8,
    }
}

impl Waiting {
    fn tightness(&self) -> u8 {
        match self {
            Waiting::Prefix(_, _, t) => *t,
            Waiting::Infix(op, _) => tightness(*op),
        }
    }
}

/// The parts of a rule that mean something.
pub(crate) fn parts(pair: Pair<'_, Rule>) -> impl Iterator<Item = Pair<'_, Rule>> {
    pair.into_inner().filter(|p| !is_form(p.as_rule()))
}

impl Builder<'_> {
    /// The place of a pair, without the blanks that a rule with an absent optional end takes along.
    pub(crate) fn span(&self, pair: &Pair<'_, Rule>) -> Span {
        let start = self.base + pair.as_span().start();
        Span::new(self.file, start, start + pair.as_str().trim_end().len())
    }

    pub(crate) fn name(&self, pair: &Pair<'_, Rule>) -> Name {
        Name { text: pair.as_str().trim_end().to_string(), span: self.span(pair) }
    }

    pub(crate) fn names(&self, pair: Pair<'_, Rule>) -> Vec<Name> {
        parts(pair).map(|p| self.name(&p)).collect()
    }

    pub(crate) fn globs(&self, pair: Pair<'_, Rule>) -> Vec<PathGlob> {
        parts(pair).map(|p| PathGlob { text: p.as_str().to_string(), span: self.span(&p) }).collect()
    }

    /// The expression of an `expr` rule.
    pub(crate) fn expr(&mut self, pair: Pair<'_, Rule>) -> Option<Expr> {
        self.deep(pair).map(|(e, _)| e)
    }

    fn deep(&mut self, pair: Pair<'_, Rule>) -> Deep<Expr> {
        let mut operands: Vec<(Expr, usize)> = Vec::new();
        let mut waiting: Vec<Waiting> = Vec::new();
        for part in parts(pair) {
            let span = self.span(&part);
            match part.as_rule() {
                Rule::sign => waiting.push(match part.as_str() {
                    "-" => Waiting::Prefix(UnaryOp::Neg, span, 7),
                    "!" => Waiting::Prefix(UnaryOp::Not, span, 7),
                    _ => Waiting::Prefix(UnaryOp::Not, span, 3),
                }),
                Rule::operator => {
                    let op = binary_op(part.as_str())?;
                    let tight = tightness(op);
                    while let Some(top) = waiting.last() {
                        if top.tightness() < tight || top.tightness() == tight && op == BinaryOp::Pow {
                            break;
                        }
                        if let Waiting::Infix(_, before) = top
                            && tight == COMPARISON
                            && top.tightness() == COMPARISON
                        {
                            self.diagnostics.push(
                                Diagnostic::error(codes::E0101, "comparisons do not chain")
                                    .at(span, "second comparison")
                                    .and(*before, "first comparison")
                                    .help("write `a < b and b < c`"),
                            );
                            return None;
                        }
                        self.reduce(&mut operands, &mut waiting)?;
                    }
                    waiting.push(Waiting::Infix(op, span));
                }
                _ => {
                    let operand = self.operand(part)?;
                    operands.push(operand);
                }
            }
        }
        while !waiting.is_empty() {
            self.reduce(&mut operands, &mut waiting)?;
        }
        operands.pop()
    }

    /// Gives the last waiting operator its operands.
    fn reduce(&mut self, operands: &mut Vec<(Expr, usize)>, waiting: &mut Vec<Waiting>) -> Option<()> {
        let top = waiting.pop()?;
        let (right, right_depth) = operands.pop()?;
        let (kind, span, depth) = match top {
            Waiting::Prefix(op, sign, _) => {
                let span = sign.to(right.span);
                (ExprKind::Unary { op, operand: Box::new(right) }, span, right_depth)
            }
            Waiting::Infix(op, op_span) => {
                let (left, left_depth) = operands.pop()?;
                let span = left.span.to(right.span);
                let kind = ExprKind::Binary { op, op_span, lhs: Box::new(left), rhs: Box::new(right) };
                (kind, span, left_depth.max(right_depth))
            }
        };
        let done = self.grown(Expr { kind, span }, depth)?;
        operands.push(done);
        Some(())
    }

    /// One level more than `below`, if there is room.
    fn grown(&mut self, expr: Expr, below: usize) -> Deep<Expr> {
        if below < MAX_DEPTH {
            return Some((expr, below + 1));
        }
        self.diagnostics.push(
            Diagnostic::error(codes::E0102, format!("this expression is more than {MAX_DEPTH} levels deep"))
                .at(expr.span, "operators, calls and brackets each add a level")
                .help("give parts of it names with `let`"),
        );
        None
    }

    fn operand(&mut self, pair: Pair<'_, Rule>) -> Deep<Expr> {
        let mut inner = parts(pair);
        let (mut expr, mut depth) = self.primary(inner.next()?)?;
        for bracket in inner {
            let close = self.span(&bracket);
            let (items, below) = self.index(bracket)?;
            let span = expr.span.to(close);
            let kind = ExprKind::Index { base: Box::new(expr), items };
            (expr, depth) = self.grown(Expr { kind, span }, depth.max(below))?;
        }
        Some((expr, depth))
    }

    fn primary(&mut self, pair: Pair<'_, Rule>) -> Deep<Expr> {
        let pair = parts(pair).next()?;
        let span = self.span(&pair);
        let text = pair.as_str();
        let kind = match pair.as_rule() {
            Rule::paren => {
                let (inner, depth) = self.deep(parts(pair).next()?)?;
                return self.grown(Expr { kind: inner.kind, span }, depth);
            }
            Rule::applied => return self.applied(pair),
            Rule::dims => ExprKind::DimList(self.names(pair)),
            Rule::boolean => ExprKind::Bool(text == "true"),
            Rule::string => ExprKind::Str(self.string(text, span)?),
            Rule::integer => ExprKind::Int(self.number(text, span, |t| t.parse().ok())?),
            _ => {
                let finite = |t: &str| t.parse().ok().filter(|v: &f64| v.is_finite());
                ExprKind::Float(self.number(text, span, finite)?)
            }
        };
        Some((Expr { kind, span }, 1))
    }

    fn number<T>(&mut self, text: &str, span: Span, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(&text.replace('_', ""));
        if value.is_none() {
            self.diagnostics.push(
                Diagnostic::error(codes::E0105, "this number is too large")
                    .at(span, "")
                    .note("integers end at 18446744073709551615, other numbers at 1.8e308"),
            );
        }
        value
    }

    /// What a string says between its quotes.
    pub(crate) fn string(&mut self, text: &str, span: Span) -> Option<String> {
        let mut out = String::new();
        let mut chars = text.get(1..text.len().saturating_sub(1)).unwrap_or("").chars();
        while let Some(c) = chars.next() {
            out.push(match c {
                '\\' => match chars.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some(c @ ('"' | '\\')) => c,
                    other => {
                        let what = other.map_or(String::new(), String::from);
                        self.diagnostics.push(
                            Diagnostic::error(codes::E0106, format!("`\\{what}` means nothing in a string"))
                                .at(span, "")
                                .help("there are `\\\"`, `\\\\`, `\\n` and `\\t`"),
                        );
                        return None;
                    }
                },
                c => c,
            });
        }
        Some(out)
    }

    /// A name and what is applied to it.
    fn applied(&mut self, pair: Pair<'_, Rule>) -> Deep<Expr> {
        let span = self.span(&pair);
        let mut inner = parts(pair).peekable();
        let name = self.name(&inner.next()?);
        let bracket = inner.next_if(|p| p.as_rule() == Rule::bracket);
        let args = inner.next_if(|p| p.as_rule() == Rule::args);
        let label = inner.next();
        let Some(args) = args else {
            let plain = Expr { kind: ExprKind::Name(name.text), span: name.span };
            let Some(bracket) = bracket else { return Some((plain, 1)) };
            let (items, depth) = self.index(bracket)?;
            return self.grown(Expr { kind: ExprKind::Index { base: Box::new(plain), items }, span }, depth);
        };
        let (args, mut depth) = self.args(args)?;
        let kind = if let Some(bracket) = bracket {
            if let Some(place) = label.map(|p| self.span(&p)) {
                self.diagnostics.push(
                    Diagnostic::error(codes::E0101, "`as` and `sharing` belong to calls of layers")
                        .at(place, format!("`{}[…]` is a built-in op and owns no parameters", name.text))
                        .fix("leave it out", place, "", false),
                );
                return None;
            }
            let (groups, below) = self.groups(bracket)?;
            depth = depth.max(below);
            ExprKind::DimOp(DimOp { name, groups, args })
        } else {
            let label = label.and_then(|p| self.label(p));
            ExprKind::Call(Call { name, args, label })
        };
        self.grown(Expr { kind, span }, depth)
    }

    fn label(&self, pair: Pair<'_, Rule>) -> Option<CallLabel> {
        let span = self.span(&pair);
        let inner = parts(pair).next()?;
        let shares = inner.as_rule() == Rule::sharing;
        let name = if shares { self.name(&parts(inner).next()?) } else { self.name(&inner) };
        Some(CallLabel { shares, name, span })
    }

    /// The arguments of an `args` rule, and the depth of the deepest.
    pub(crate) fn args(&mut self, pair: Pair<'_, Rule>) -> Deep<Vec<Arg>> {
        let mut out = Vec::new();
        let mut deepest = 0;
        for arg in parts(pair) {
            let mut inner = parts(arg).peekable();
            let name = inner.next_if(|p| p.as_rule() == Rule::name).map(|p| self.name(&p));
            let (value, depth) = self.deep(inner.next()?)?;
            deepest = deepest.max(depth);
            let within = inner.next().and_then(|p| parts(p).next()).map(|p| self.name(&p));
            out.push(Arg { name, value, within });
        }
        Some((out, deepest))
    }

    /// A bracket behind a value: one group.
    fn index(&mut self, pair: Pair<'_, Rule>) -> Deep<Vec<DimItem>> {
        let span = self.span(&pair);
        let (mut groups, depth) = self.groups(pair)?;
        if groups.len() > 1 {
            self.diagnostics.push(
                Diagnostic::error(codes::E0101, "`;` belongs to ops over dims only")
                    .at(span, "this bracket stands behind a value")
                    .help("an op has its operands behind the bracket: `conv[rows by kh; in](x, w)`"),
            );
            return None;
        }
        Some((groups.pop()?, depth))
    }

    fn groups(&mut self, pair: Pair<'_, Rule>) -> Deep<Vec<Vec<DimItem>>> {
        let mut deepest = 0;
        let mut groups = Vec::new();
        for group in parts(pair) {
            let mut items = Vec::new();
            for item in parts(group) {
                let (item, depth) = self.item(item)?;
                deepest = deepest.max(depth);
                items.push(item);
            }
            groups.push(items);
        }
        Some((groups, deepest))
    }

    fn item(&mut self, pair: Pair<'_, Rule>) -> Deep<DimItem> {
        let mut item =
            DimItem { dims: Vec::new(), at: None, to: Vec::new(), window: None, span: self.span(&pair) };
        let mut deepest = 0;
        for part in parts(pair) {
            match part.as_rule() {
                Rule::product => item.dims = self.names(part),
                Rule::target => item.to = self.names(part),
                Rule::name => item.window = Some(self.name(&part)),
                _ => {
                    let (value, depth) = self.deep(part)?;
                    deepest = deepest.max(depth);
                    item.at = Some(match item.at.take() {
                        Some(At::Value(low)) => At::Range(low, value),
                        _ => At::Value(value),
                    });
                }
            }
        }
        Some((item, deepest))
    }
}

fn binary_op(text: &str) -> Option<BinaryOp> {
    Some(match text {
        "or" => BinaryOp::Or,
        "and" => BinaryOp::And,
        "==" => BinaryOp::Eq,
        "!=" => BinaryOp::Ne,
        "<" => BinaryOp::Lt,
        "<=" => BinaryOp::Le,
        ">" => BinaryOp::Gt,
        ">=" => BinaryOp::Ge,
        "+" => BinaryOp::Add,
        "-" => BinaryOp::Sub,
        "*" => BinaryOp::Mul,
        "/" => BinaryOp::Div,
        "//" => BinaryOp::IntDiv,
        "%" => BinaryOp::Rem,
        "**" => BinaryOp::Pow,
        _ => return None,
    })
}
