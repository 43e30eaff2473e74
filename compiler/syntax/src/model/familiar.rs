//! Spellings of other languages and of mathematics, told by the tokens around the one that does not fit: how each is written
//! here.

use meshwright_diag::{Diagnostic, Span};

use super::Parser;
use crate::scan::TokenKind;

/// Keywords before the name of a value.
const DECLARE: [&str; 7] = ["input", "let", "loss", "metric", "output", "param", "state"];
/// Those whose values are declared with their dims.
const WITH_DIMS: [&str; 3] = ["input", "param", "state"];

/// A replacement of a part of the text, with its title.
type Mend = (&'static str, Span, String);

impl Parser<'_> {
    /// Adds how to write what was meant at token `index`, where that can be told and nothing else is said yet.
    pub(super) fn with_spelling(&self, d: Diagnostic, index: usize, expected: &[&str]) -> Diagnostic {
        if !(d.fixes.is_empty() && d.helps.is_empty()) || index == 0 {
            return d;
        }
        if let Some((title, span, with)) = self.sign_mend(index, expected) {
            return d.fix(title, span, with, false);
        }
        if expected.contains(&"a name") {
            return self.with_dim_names(d, index);
        }
        self.with_call(d, index, expected)
    }

    /// `dim n: 8`, `n := 8`, `dim n 8`, `let y: float = x`, `input x[n] float`, `adam(lr: 0.1)`, `layer f(x: float)`,
    /// `minimize: l`: another sign, or none.
    fn sign_mend(&self, index: usize, expected: &[&str]) -> Option<Mend> {
        const SIGN: &str = "write `=`";
        let blank_before = |i: usize| self.scan.tokens[i - 1].end < self.scan.tokens[i].start;
        let equals = |i: usize| if blank_before(i) { "=" } else { " =" };
        let wants = |sign: &str| expected == [sign];
        let named = self.is_word(index - 1);
        let open = self.open_bracket(index).filter(|i| self.token(*i) == "(");
        let setting = named && open.is_some();
        let of_layer = setting && open.is_some_and(|i| i > 1 && self.token(i - 2) == "layer");
        match self.token(index) {
            ":" if self.token(index + 1) == "=" && self.span(index).end == self.span(index + 1).start => {
                Some((SIGN, self.span(index).to(self.span(index + 1)), equals(index).into()))
            }
            ":" | "=" if named && open.is_none() && expected == ["a name"] => {
                Some(("leave it out", self.span(index), String::new()))
            }
            ":" if of_layer || wants("`=`") && self.is_word(index + 1) && self.token(index + 2) == "=" => {
                let whole = Span { start: self.span(index - 1).end, ..self.span(index + 1) };
                Some(("leave the type out: it follows", whole, String::new()))
            }
            ":" if wants("`=`") || setting => Some((SIGN, self.span(index), equals(index).into())),
            "(" if wants("`=`") && index > 2 && self.token(index - 2) == ":" => {
                Some((SIGN, self.span(index - 2), equals(index - 2).into()))
            }
            _ => {
                let next = self.scan.tokens.get(index).filter(|t| !t.leads && t.kind != TokenKind::Sign)?;
                let (title, sign) = match expected {
                    ["`=`"] => (SIGN, " ="),
                    ["`:`"] => ("write `:`", ":"),
                    _ => return None,
                };
                let end = self.span(index - 1).end;
                let here = Span { start: end, end, ..self.span(index) };
                (next.kind != TokenKind::Strange).then(|| (title, here, sign.into()))
            }
        }
    }

    /// `relu x`, `sum[d] x`: operands without parentheses; or two values without an operator.
    fn with_call(&self, d: Diagnostic, index: usize, expected: &[&str]) -> Diagnostic {
        let ends = |e: &&str| ["the next statement", "`,`", "`)`"].contains(e);
        let is_operand =
            |t: &crate::scan::Token| !t.leads && matches!(t.kind, TokenKind::Word | TokenKind::Number);
        if !expected.iter().any(ends) || !self.scan.tokens.get(index).is_some_and(is_operand) {
            return d;
        }
        let bracketed = self.token(index - 1) == "]";
        let name = if bracketed {
            self.open_bracket(index - 1).and_then(|i| i.checked_sub(1))
        } else {
            Some(index - 1)
        };
        let Some(name) = name.filter(|i| self.is_word(*i)) else { return d };
        let (first, operand) = (self.text_of(name, index - 1), self.span(index));
        if self.is_value(self.token(name)) {
            let second = self.text_of(index, index);
            return d.help(format!("an operator stands between two values, as in `{first} * {second}`"));
        }
        let last = self.operand_end(index, bracketed);
        let whole = Span { start: self.span(index - 1).end, ..operand }.to(self.span(last));
        d.fix("write the operand in parentheses", whole, format!("({})", self.text_of(index, last)), false)
    }

    /// The last token of the operand that begins at token `index`: of the name or number with what is applied to it, or of the
    /// `whole` expression on the line.
    fn operand_end(&self, index: usize, whole: bool) -> usize {
        let mut open = 0usize;
        for i in index + 1..self.scan.tokens.len() {
            let token = self.token(i);
            let on_line = !self.scan.tokens[i].leads;
            match token {
                "(" | "[" if open > 0 || on_line => open += 1,
                ")" | "]" if open > 0 => open -= 1,
                _ if open > 0 => {}
                ")" | "]" | "{" | "}" | "," | ";" => return i - 1,
                _ if whole && on_line => {}
                _ => return i - 1,
            }
        }
        self.scan.tokens.len() - 1
    }

    /// `x[1]`, `x[:, 1]`, `sum[1](x)`: numbers for dims.
    fn with_dim_names(&self, d: Diagnostic, index: usize) -> Diagnostic {
        let is_number = self.scan.tokens.get(index).is_some_and(|t| t.kind == TokenKind::Number);
        let open =
            self.open_bracket(index).filter(|i| self.token(*i) == "[" && *i > 0 && self.is_word(i - 1));
        let Some(open) = open.filter(|_| is_number || [":", "-"].contains(&self.token(index))) else {
            return d;
        };
        let word = self.token(open - 1);
        if !self.is_value(word) {
            return d.help(format!("dims have names and no numbers: `{word}[d](x)` is along the dim `d`"));
        }
        match self.positions(open) {
            Some((close, positions)) => {
                let title = "name the dim of each position";
                d.fix(title, self.span(open).to(self.span(close)), positions, false)
            }
            None => {
                d.help(format!("a position names its dim: `{word}[d = 1]` is position 1 along the dim `d`"))
            }
        }
    }

    /// The bracket that opens at token `open` behind a value, with the dims of its numbers, and the token that closes it. None
    /// where its dims are not declared, or it holds more than whole numbers and `:`.
    fn positions(&self, open: usize) -> Option<(usize, String)> {
        let word = self.token(open - 1);
        let declared = (1..self.scan.tokens.len()).find(|i| {
            self.token(*i) == word && WITH_DIMS.contains(&self.token(i - 1)) && self.token(i + 1) == "["
        })?;
        let dims: Vec<&str> = (declared + 2..)
            .map(|i| self.token(i))
            .take_while(|t| !["]", ""].contains(t))
            .filter(|t| *t != ",")
            .collect();
        let close = (open + 1..self.scan.tokens.len()).find(|i| self.token(*i) == "]")?;
        let given: Vec<&str> = (open + 1..close).map(|i| self.token(i)).collect();
        let mut positions = Vec::new();
        for (n, item) in given.split(|t| *t == ",").enumerate() {
            match item {
                [":"] => {}
                [number] if number.bytes().all(|b| b.is_ascii_digit()) => {
                    positions.push(format!("{} = {number}", dims.get(n)?));
                }
                _ => return None,
            }
        }
        let inside = positions.join(", ");
        Some((close, if inside.is_empty() { inside } else { format!("[{inside}]") }))
    }

    /// Whether a name is declared as a value anywhere in the file.
    fn is_value(&self, name: &str) -> bool {
        let declared = |i: usize| match self.token(i) {
            "min" | "max" if i > 0 => self.token(i - 1) == "metric",
            word => DECLARE.contains(&word),
        };
        (1..self.scan.tokens.len()).any(|i| self.token(i) == name && declared(i - 1))
    }

    /// The text from token `first` to token `last`.
    fn text_of(&self, first: usize, last: usize) -> &str {
        &self.text[self.scan.tokens[first].start..self.scan.tokens[last].end]
    }
}
