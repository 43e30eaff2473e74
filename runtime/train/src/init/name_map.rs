//! Which tensor of a file is which of the model's: rules such as `encoder.* = enc.*`.

use super::rule::{NameRule, renamed};
use crate::map_text::merged;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_runs::catalog::{MAPS, find};
use meshwright_runs::settings::{InitFrom, SHIPPED_MAP};
use std::path::Path;

/// Rules in order; the first that matches a name decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NameMap {
    pub(crate) rules: Vec<NameRule>,
}

/// What a rule may look like.
const FORM: &str = "a rule is `NEW = OLD`, such as `encoder.* = enc.*`; `NEW[0..11]`, `NEW[2..]` and `layers[..2].*` are for a part; and behind it, if need be, `[0..64]` or `[.., part 2 of 3]`, `transposed`, `permuted 2 3 1 0`, `reshaped 1 2`";

impl NameMap {
    /// Reads rules, separated by semicolons or line ends, or the files that hold them, or those of a map that ships (`hf:gpt`).
    /// `#` at the beginning of a word begins a comment.
    ///
    /// # Errors
    ///
    /// E0516 where a rule is malformed, a file cannot be read or no such map ships.
    pub fn read(given: &[String]) -> Checked<NameMap> {
        let mut all = NameMap::default();
        for text in given {
            // A map that ships has rules for all that its model may have.
            let ships = text.starts_with(SHIPPED_MAP);
            let (text, place) = match (text.strip_prefix(SHIPPED_MAP), InitFrom::names_file(text)) {
                (Some(name), _) => (shipped(name)?, format!(" of the map `{name}`")),
                (None, false) => (text.clone(), String::new()),
                (None, true) => (content(text)?, format!(" in `{text}`")),
            };
            let mut read = NameMap::parse(&text, &place)?;
            if ships {
                read.rules.iter_mut().for_each(|r| r.optional = true);
            }
            all.rules.extend(read.rules);
        }
        Ok(all)
    }

    /// The rules of a text; `place` says where it is, if it is a file.
    pub(crate) fn parse(text: &str, place: &str) -> Checked<NameMap> {
        let mut rules = Vec::new();
        for (n, line) in text.lines().enumerate() {
            for rule in plain(line).split(';').map(str::trim).filter(|r| !r.is_empty()) {
                let at = if place.is_empty() { String::new() } else { format!("{place}, line {}", n + 1) };
                rules.push(NameRule::read(rule).map_err(|why| {
                    let message = format!("`{rule}`{at} is not a rule for names: {why}");
                    Box::new(Diagnostic::error(codes::E0516, message).help(FORM))
                })?);
            }
        }
        Ok(NameMap { rules })
    }

    /// The names that what is called `name` here may have in the file, with the rule that says it; none where no rule does.
    pub(crate) fn old_of<'a>(&'a self, name: &'a str) -> Option<(Vec<String>, &'a NameRule)> {
        self.olds_of(name).next()
    }

    /// The same of each rule for it, up to the first that is for all of it: the others are for parts.
    pub(crate) fn olds_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (Vec<String>, &'a NameRule)> {
        let mut whole = false;
        let rules = self.rules.iter().filter(move |r| r.matches(name));
        let rules = rules.take_while(move |r| !std::mem::replace(&mut whole, r.region.is_whole()));
        rules.map(move |r| (r.olds.iter().filter_map(|old| renamed(&r.new, old, name)).collect(), r))
    }

    /// The rules without those that are for none of these paths.
    pub(crate) fn of_paths<'a>(&self, paths: impl Iterator<Item = &'a str> + Clone) -> NameMap {
        let used = self.rules.iter().filter(|r| paths.clone().any(|p| r.matches(p)));
        NameMap { rules: used.cloned().collect() }
    }

    /// The name here of what is called `name` in the file.
    pub(crate) fn new_of(&self, name: &str) -> Option<String> {
        self.rules.iter().find_map(|r| r.olds.iter().find_map(|old| renamed(old, &r.new, name)))
    }

    /// A rule that says more than a name, which only a model that takes tensors can use.
    pub fn turning(&self) -> Option<&str> {
        self.rules.iter().find(|r| r.turns()).map(|r| r.text.as_str())
    }
}

/// A line without its comment. A `#` within a name is the number of a layer.
fn plain(line: &str) -> &str {
    let comment =
        line.match_indices('#').find(|(i, _)| line[..*i].chars().last().is_none_or(char::is_whitespace));
    comment.map_or(line, |(i, _)| &line[..i])
}

/// The rules of a map that ships.
fn shipped(name: &str) -> Checked<String> {
    let refused = |d: Diagnostic| {
        let names: Vec<&str> = MAPS.iter().map(|m| m.name).collect();
        let d = match nearest(name, names.iter().copied()) {
            Some(near) => d.help(format!("did you mean `{SHIPPED_MAP}{near}`?")),
            None => d,
        };
        Box::new(d.help(format!("maps ship for {}", names.join(", "))))
    };
    let none = || refused(Diagnostic::error(codes::E0516, format!("no map `{name}` ships")));
    let text = find(MAPS, name).ok_or_else(none)?.text;
    let table = merged(text).unwrap_or_default();
    table.get("weights").and_then(|w| w.as_str()).map(String::from).ok_or_else(none)
}

fn content(path: &str) -> Checked<String> {
    let failed = |why: String| {
        let d = Diagnostic::error(
            codes::E0516,
            format!("`{path}` is neither a rule for names nor a file of them: {why}"),
        );
        Box::new(d.help(FORM))
    };
    let bytes =
        meshwright_files::durable::read_regular(Path::new(path)).map_err(|e| failed(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::view::{DimOrder, DimPart, Reshape, View};
    use super::*;

    fn old(rules: &str, name: &str) -> Option<String> {
        NameMap::read(&[rules.to_string()]).unwrap().old_of(name)?.0.pop()
    }

    #[test]
    fn the_first_rule_that_matches_gives_the_name() {
        let rules = "head.w = fc.weight; b*.attention.* = layer.*.attn.*; encoder.* = enc.*";
        assert_eq!(old(rules, "head.w").unwrap(), "fc.weight");
        assert_eq!(old(rules, "b12.attention.q.w").unwrap(), "layer.12.attn.q.w");
        assert_eq!(old(rules, "encoder.in.b").unwrap(), "enc.in.b");
        assert_eq!(old(rules, "head.w2"), None);
        let map = NameMap::read(&[rules.into()]).unwrap();
        assert_eq!(map.new_of("enc.x").unwrap(), "encoder.x");
        assert_eq!(map.turning(), None);
    }

    #[test]
    fn a_rule_says_how_a_tensor_is_turned() {
        let map =
            "# of another framework\nw = fc.weight[3..9] transposed reshaped # rows\nk = c permuted 2 0 1";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), map).unwrap();
        let map = NameMap::read(&[file.path().display().to_string()]).unwrap();
        let (name, rule) = map.old_of("w").unwrap();
        assert_eq!(
            (name.as_slice(), rule.view.clone()),
            (
                &["fc.weight".to_string()][..],
                View {
                    parts: vec![DimPart::Positions(3..9)],
                    order: DimOrder::Reversed,
                    reshape: Reshape::Any
                }
            )
        );
        assert_eq!(map.old_of("k").unwrap().1.view.order, DimOrder::Of(vec![2, 0, 1]));
        assert_eq!(map.turning().unwrap(), "w = fc.weight[3..9] transposed reshaped");
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for (text, why) in [
            ("a.* = b", "have not the same number of `*`"),
            ("a =", "nothing behind"),
            ("= b", "before `=` there is one name"),
            ("a = b upside", "it has `upside` behind the name"),
            ("a = b permuted 0 2", "the numbers of all dims"),
            ("a = b[4..4]", "are no positions"),
            ("a[..0] = b", "are no positions"),
            ("a[x..] = b", "`x` is not a position"),
            ("a = b[.., part 4 of 3]", "there is no part 4 of 3"),
            ("a = b[half]", "positions along a dim are"),
            ("a = b[0..4", "its `[` has no `]`"),
            ("a = b.(c|d", "its `(` has no `)`"),
            ("a = b.c|d", "alternatives are"),
            ("a = b.#.c.#", "stands once"),
            ("a = b.(#|0).c", "stands once"),
            ("a = b reshaped 1 0", "1 or more"),
            ("hf:gtp", "no map `gtp` ships"),
            ("nowhere.map", "neither a rule for names nor a file"),
        ] {
            let e = NameMap::read(&[text.into()]).unwrap_err();
            let help = if text.starts_with("hf:") { "did you mean `hf:gpt`?" } else { "a rule is" };
            assert!(e.message.contains(why) && e.helps[0].starts_with(help), "{text}: {}", e.message);
        }
    }

    #[test]
    fn names_of_layers_and_alternatives_are_read() {
        let rules = "layers.*.w = (model.|)h.#.*.(weight|kernel)[.., part 2 of 3] reshaped 1 2 # columns";
        let map = NameMap::read(&[rules.into()]).unwrap();
        let (names, rule) = map.old_of("layers.q.w").unwrap();
        let all = ["model.h.#.q.weight", "model.h.#.q.kernel", "h.#.q.weight", "h.#.q.kernel"];
        assert_eq!(names, all);
        let view = View {
            parts: vec![DimPart::All, DimPart::Share(1, 3)],
            reshape: Reshape::Into(vec![1, 2]),
            ..View::default()
        };
        assert_eq!(rule.view, view);
        assert!(map.turning().is_some() && NameMap::read(&["a = (b|c)".into()]).unwrap().turning().is_some());
        assert!(NameMap::read(&["hf:gpt".into()]).unwrap().old_of("layers.block.mlp.up.w").is_some());
    }
}
