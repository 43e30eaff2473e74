//! What is done about reserved words that are meant as names.

use std::collections::BTreeMap;

use meshwright_diag::{Diagnostic, codes};

use super::Parser;
use super::keywords::is_keyword;

/// Keywords that a name follows.
const DECLARING: [&str; 14] = [
    "let", "param", "input", "loss", "metric", "output", "state", "repeat", "scan", "dim", "const", "layer",
    "model", "as",
];

impl Parser<'_> {
    /// Finds reserved words that stand where a name is declared, or as one of several dims or arguments: reports each word once, and lets
    /// everything after it see a name.
    pub(super) fn mend_names(&mut self) {
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
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
                opens == 0 && is_keyword(word) && word != "return"
            })
            .collect();
        for &i in &all {
            if self.declares(i) || self.listed(i) {
                names.entry(self.token(i).to_string()).or_insert(i);
            }
        }
        let named = |i: &usize| {
            let stands = self.declares(*i) || self.listed(*i) || self.operand(*i);
            names.contains_key(self.token(*i)) && stands
        };
        let named: Vec<usize> = all.into_iter().filter(named).collect();
        for token in named.into_iter().map(|i| self.scan.tokens[i]) {
            self.scan.masked[token.start..token.end].make_ascii_uppercase();
        }
        for (word, at) in names {
            let d = Diagnostic::error(
                codes::E0101,
                format!("`{word}` is a reserved word, which cannot be a name"),
            )
            .at(self.span(at), "begins a statement")
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
}
