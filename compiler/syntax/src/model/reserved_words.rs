//! What is done about reserved words that are meant as names.

use meshwright_sorted::SortedMap;

use meshwright_diag::{Diagnostic, codes};

use super::Parser;
use super::keywords::is_keyword;

/// Keywords that a name follows.
const DECLARING: [&str; 14] = [
    "let", "param", "input", "loss", "metric", "output", "state", "repeat", "scan", "dim", "const", "layer",
    "model", "as",
];

/// Words that also stand in expressions, and `return`: each is meant as a name only where one of that name is declared.
const IN_EXPRESSIONS: [&str; 6] = ["return", "true", "false", "and", "or", "not"];

impl Parser<'_> {
    /// Finds reserved words that stand where a name is declared, or as one of several dims or arguments: reports each word once,
    /// and lets everything after it see a name.
    pub(super) fn mend_names(&mut self) {
        let mut names: SortedMap<String, usize> = SortedMap::new();
        let mut opens = 0;
        let all: Vec<usize> = (0..self.scan.tokens.len())
            .filter(|&i| {
                let word = self.token(i);
                // In a train block, paths may have parts with any name.
                match word {
                    "{" if opens > 0 || i > 1 && self.token(i - 2) == "train" => opens += 1,
                    "}" if opens > 0 => opens -= 1,
                    _ => {}
                }
                opens == 0 && (is_keyword(word) || IN_EXPRESSIONS.contains(&word))
            })
            .collect();
        for &i in &all {
            let common = IN_EXPRESSIONS.contains(&self.token(i));
            if self.declares(i) || !common && self.listed(i) {
                names.entry(self.token(i).to_string()).or_insert(i);
            }
        }
        let named = |i: &usize| {
            let word = self.token(*i);
            let stands = match IN_EXPRESSIONS.contains(&word) {
                true => self.declares(*i) || self.can_only_be_an_operand(*i),
                false => self.declares(*i) || self.listed(*i) || self.operand(*i),
            };
            names.contains_key(word) && stands
        };
        let named: Vec<usize> = all.into_iter().filter(named).collect();
        for token in named.into_iter().map(|i| self.scan.tokens[i]) {
            self.scan.masked[token.start..token.end].make_ascii_uppercase();
        }
        for (word, at) in names {
            let does = match word.as_str() {
                "true" | "false" => "is a truth value",
                "and" | "or" | "not" => "is an operator",
                _ => "begins a statement",
            };
            let message = format!("`{word}` is a reserved word, which cannot be a name");
            let d = Diagnostic::error(codes::E0101, message)
                .at(self.span(at), does)
                .help(format!("call it otherwise everywhere, such as `{word}1`"));
            self.diagnostics.push(d);
        }
    }

    fn leads(&self, index: usize) -> bool {
        self.scan.tokens.get(index).is_none_or(|t| t.leads)
    }

    /// Whether a word on the same line as the keyword that declares a name is that name: nothing of the sort follows it.
    fn declares(&self, index: usize) -> bool {
        let Some(before) = index.checked_sub(1).map(|i| self.token(i)) else { return false };
        let alone = !self.is_word(index + 1) || self.leads(index + 1);
        let another = before == "," && self.token(index + 1) == "=" && self.open_bracket(index).is_none();
        !self.leads(index) && alone && (DECLARING.contains(&before) || another)
    }

    /// Whether it stands between signs that separate dims or arguments.
    fn listed(&self, index: usize) -> bool {
        let between = index > 0
            && matches!(self.token(index - 1), "[" | "(" | "," | "->" | "*")
            && matches!(self.token(index + 1), "]" | ")" | "," | "->" | "*" | "[");
        !self.leads(index) && between && self.open_bracket(index).is_some()
    }

    /// Whether it stands beside a sign as an operand does.
    fn operand(&self, index: usize) -> bool {
        let sign = |i: usize| {
            let text = self.token(i);
            !text.is_empty() && text.chars().all(|c| "+-*/%<>=!,()[]".contains(c))
        };
        !self.is_word(index + 1) && sign(index + 1) || index > 0 && !self.leads(index) && sign(index - 1)
    }

    /// True for a word between two signs that leave no place for an operator or a statement.
    fn can_only_be_an_operand(&self, index: usize) -> bool {
        let sign = |i: usize, signs: &str| {
            let text = self.token(i);
            !text.is_empty() && text.chars().all(|c| signs.contains(c))
        };
        let after = index > 0 && (sign(index - 1, "+-*/%<>=!,([") || self.token(index - 1) == "in");
        let ends = self.leads(index + 1) || sign(index + 1, "+-*/%<>=!,)]");
        !self.leads(index) && after && ends
    }
}
