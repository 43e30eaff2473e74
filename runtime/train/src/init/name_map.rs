//! Which tensor of a file is which of the model's: rules such as `encoder.* = enc.*`.

use crate::Checked;
use meshwright_diag::{Diagnostic, codes};
use std::ops::Range;
use std::path::Path;

/// Rules in order; the first that matches a name decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NameMap {
    pub(crate) rules: Vec<NameRule>,
}

/// `NEW = OLD`: what is called `OLD` in the file is `NEW` here. A `*` on both sides is the same text, with dots and all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NameRule {
    /// As it was written.
    pub(crate) text: String,
    /// The name here.
    pub(crate) new: String,
    /// The name in the file.
    pub(crate) old: String,
    /// What of the tensor is taken, and how it is turned.
    pub(crate) view: View,
}

/// How a tensor of another framework becomes one of the model: a part along its first dim, its dims in another order, and at last
/// with other dims that hold the same elements in the same order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct View {
    pub(crate) rows: Option<Range<usize>>,
    pub(crate) order: Order,
    pub(crate) reshaped: bool,
}

/// The order of dims, as a tensor is taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Order {
    /// As in the file.
    #[default]
    Same,
    /// The last dim first, the first last.
    Reversed,
    /// The positions in the file of the dims here.
    Of(Vec<usize>),
}

/// What a rule may look like.
const FORM: &str = "a rule is `NEW = OLD`, such as `encoder.* = enc.*`, and behind it, if need be, `[0..64]` (rows), `transposed`, `permuted 2 3 1 0`, `reshaped`";

impl NameMap {
    /// Reads rules, separated by semicolons or line ends, or the files that hold them. `#` begins a comment.
    ///
    /// # Errors
    ///
    /// E0516 where a rule is malformed or a file cannot be read.
    pub fn read(given: &[String]) -> Checked<NameMap> {
        let mut rules = Vec::new();
        for text in given {
            let (text, place) = match text.contains('=') {
                true => (text.clone(), String::new()),
                false => (content(text)?, format!(" in `{text}`")),
            };
            for (n, line) in text.lines().enumerate() {
                let plain = line.split('#').next().unwrap_or_default();
                for rule in plain.split(';').map(str::trim).filter(|r| !r.is_empty()) {
                    let at =
                        if place.is_empty() { String::new() } else { format!("{place}, line {}", n + 1) };
                    rules.push(NameRule::read(rule).map_err(|why| {
                        let message = format!("`{rule}`{at} is not a rule for names: {why}");
                        Box::new(Diagnostic::error(codes::E0516, message).help(FORM))
                    })?);
                }
            }
        }
        Ok(NameMap { rules })
    }

    /// The name in the file of what is called `name` here, with the rule that says it; none where no rule does.
    pub(crate) fn old_of(&self, name: &str) -> Option<(String, &NameRule)> {
        self.rules.iter().find_map(|r| Some((renamed(&r.new, &r.old, name)?, r)))
    }

    /// The name here of what is called `name` in the file.
    pub(crate) fn new_of(&self, name: &str) -> Option<(String, &NameRule)> {
        self.rules.iter().find_map(|r| Some((renamed(&r.old, &r.new, name)?, r)))
    }

    /// A rule that says more than a name, which only a model that takes tensors can use.
    pub fn turning(&self) -> Option<&str> {
        self.rules.iter().find(|r| r.view != View::default()).map(|r| r.text.as_str())
    }
}

fn content(path: &str) -> Checked<String> {
    let failed = |why: String| {
        let d = Diagnostic::error(
            codes::E0516,
            format!("`{path}` is neither a rule for names nor a file of them: {why}"),
        );
        Box::new(d.help(FORM))
    };
    let bytes = crate::checkpoint::fs::read_regular(Path::new(path)).map_err(|e| failed(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| failed(e.to_string()))
}

impl NameRule {
    fn read(text: &str) -> Result<NameRule, String> {
        let (new, rest) = text.split_once('=').ok_or("it has no `=`")?;
        let mut words = rest.split_whitespace().peekable();
        let new = new.trim();
        let mut old = words.next().ok_or("it has nothing behind `=`")?;
        let mut view = View::default();
        if let Some((name, rows)) = old.strip_suffix(']').and_then(|o| o.split_once('[')) {
            let (from, to) = rows.split_once("..").ok_or("rows are `[FROM..TO]`")?;
            let number = |t: &str| t.trim().parse::<usize>().map_err(|_| format!("`{t}` is not a row"));
            let (from, to) = (number(from)?, number(to)?);
            if from >= to {
                return Err(format!("`[{rows}]` are no rows"));
            }
            (old, view.rows) = (name, Some(from..to));
        }
        while let Some(word) = words.next() {
            match word {
                "transposed" if view.order == Order::Same => view.order = Order::Reversed,
                "permuted" if view.order == Order::Same => {
                    let mut order = Vec::new();
                    while let Some(n) = words.peek().and_then(|w| w.parse::<usize>().ok()) {
                        order.push(n);
                        words.next();
                    }
                    let mut sorted = order.clone();
                    sorted.sort_unstable();
                    if order.is_empty() || sorted.iter().enumerate().any(|(i, n)| i != *n) {
                        return Err(
                            "`permuted` takes the numbers of all dims, from 0, in their new order".into()
                        );
                    }
                    view.order = Order::Of(order);
                }
                "reshaped" if !view.reshaped => view.reshaped = true,
                other => return Err(format!("it has `{other}` behind the name")),
            }
        }
        if new.is_empty() || new.contains(char::is_whitespace) {
            return Err("before `=` there is one name".into());
        }
        let stars = |t: &str| t.matches('*').count();
        if stars(new) != stars(old) {
            return Err(format!("`{new}` and `{old}` have not the same number of `*`"));
        }
        Ok(NameRule { text: text.into(), new: new.into(), old: old.into(), view })
    }

    /// Whether it is for what has that name here.
    pub(crate) fn matches(&self, name: &str) -> bool {
        matched(&self.new, name).is_some()
    }

    /// Whether it is for what has that name in the file.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        matched(&self.old, name).is_some()
    }
}

/// `name`, which matches `from`, as `to` has it.
fn renamed(from: &str, to: &str, name: &str) -> Option<String> {
    let stars = matched(from, name)?;
    let mut stars = stars.into_iter();
    let mut parts = to.split('*');
    let first = parts.next().unwrap_or_default().to_string();
    Some(parts.fold(first, |all, part| all + stars.next().unwrap_or_default() + part))
}

/// What the stars of a pattern are in a name; the first are as short as can be.
fn matched<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let Some((before, after)) = pattern.split_once('*') else {
        return (pattern == name).then(Vec::new);
    };
    let rest = name.strip_prefix(before)?;
    if !after.contains('*') {
        return Some(vec![rest.strip_suffix(after)?]);
    }
    let ends = rest.char_indices().map(|c| c.0).chain([rest.len()]);
    ends.into_iter().find_map(|end| {
        let more = matched(after, &rest[end..])?;
        Some(std::iter::once(&rest[..end]).chain(more).collect())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn old(rules: &str, name: &str) -> Option<String> {
        NameMap::read(&[rules.to_string()]).unwrap().old_of(name).map(|o| o.0)
    }

    #[test]
    fn the_first_rule_that_matches_gives_the_name() {
        let rules = "head.w = fc.weight; b*.attention.* = layer.*.attn.*; encoder.* = enc.*";
        assert_eq!(old(rules, "head.w").unwrap(), "fc.weight");
        assert_eq!(old(rules, "b12.attention.q.w").unwrap(), "layer.12.attn.q.w");
        assert_eq!(old(rules, "encoder.in.b").unwrap(), "enc.in.b");
        assert_eq!(old(rules, "head.w2"), None);
        let map = NameMap::read(&[rules.into()]).unwrap();
        assert_eq!(map.new_of("enc.x").unwrap().0, "encoder.x");
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
            (name.as_str(), rule.view.clone()),
            ("fc.weight", View { rows: Some(3..9), order: Order::Reversed, reshaped: true })
        );
        assert_eq!(map.old_of("k").unwrap().1.view.order, Order::Of(vec![2, 0, 1]));
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
            ("a = b[4..4]", "are no rows"),
            ("nowhere.map", "neither a rule for names nor a file"),
        ] {
            let e = NameMap::read(&[text.into()]).unwrap_err();
            assert!(e.message.contains(why) && e.helps[0].starts_with("a rule is"), "{text}: {}", e.message);
        }
    }
}
