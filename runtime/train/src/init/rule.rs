//! A rule of a name map: `NEW = OLD`, with what is done to the tensor behind it.

use super::region::RegionOf;
use super::view::{DimOrder, DimPart, Reshape, View};

/// `NEW = OLD`: what is called `OLD` in the file is `NEW` here, or a part of it: `NEW[0..11]`, `layers[0..2].*`. A `*` on both
/// sides is the same text, with dots and all; a `#` in the file's name is the number of a layer, whose tensors are one here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NameRule {
    /// As it was written.
    pub(crate) text: String,
    /// The name here.
    pub(crate) new: String,
    /// Which part of what has that name it is for.
    pub(crate) region: RegionOf,
    /// The names that it may have in the file; the first is the one that is written.
    pub(crate) olds: Vec<String>,
    /// The part of the tensor, and its transformation.
    pub(crate) view: View,
    /// The model may lack its parameter.
    pub(crate) optional: bool,
}

impl NameRule {
    /// Reads a rule. An error says what is wrong with it.
    pub(super) fn read(text: &str) -> Result<NameRule, String> {
        let (new, rest) = text.split_once('=').ok_or("it has no `=`")?;
        let (new, region) = RegionOf::read(new.trim())?;
        let (new, rest) = (new.as_str(), rest.trim());
        let end = rest.find(|c: char| c == '[' || c.is_whitespace()).unwrap_or(rest.len());
        let (old, rest) = rest.split_at(end);
        if old.is_empty() {
            return Err("it has nothing behind `=`".into());
        }
        let mut view = View::default();
        let rest = match rest.strip_prefix('[') {
            Some(inner) => {
                let (parts, rest) = inner.split_once(']').ok_or("its `[` has no `]`")?;
                view.parts = parts.split(',').map(|p| DimPart::read(p.trim())).collect::<Result<_, _>>()?;
                rest
            }
            None => rest,
        };
        turn(rest, &mut view)?;
        if new.is_empty() || new.contains(char::is_whitespace) {
            return Err("before `=` there is one name".into());
        }
        let olds = alternatives(old)?;
        let stars = |t: &str| t.matches('*').count();
        if olds.iter().any(|o| stars(new) != stars(o)) {
            return Err(format!("`{new}` and `{old}` have not the same number of `*`"));
        }
        if new.contains('#')
            || olds.iter().any(|o| layered(o) != layered(&olds[0]) || o.matches('#').count() > 1)
        {
            return Err("`#`, the number of a layer, stands once in the file's name".into());
        }
        Ok(NameRule { text: text.into(), new: new.into(), region, olds, view, optional: false })
    }

    /// True if it is for a parameter of that name here.
    pub(crate) fn matches(&self, name: &str) -> bool {
        matched(&self.new, name).is_some()
    }

    /// True if it is for a tensor of that name in the file.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        self.olds.iter().any(|old| matched(old, name).is_some())
    }

    /// Whether it says more than a name.
    pub(crate) fn turns(&self) -> bool {
        self.view != View::default()
            || !self.region.is_whole()
            || self.olds.len() > 1
            || self.olds.iter().any(|o| layered(o))
    }
}

/// Whether a name of a file is of many layers.
pub(crate) fn layered(name: &str) -> bool {
    name.contains('#')
}

/// The name in the file of a layer's tensor.
pub(crate) fn of_layer(name: &str, layer: usize) -> String {
    name.replace('#', &layer.to_string())
}

/// Reads what stands behind the name.
fn turn(text: &str, view: &mut View) -> Result<(), String> {
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let mut numbers = || -> Vec<usize> {
            std::iter::from_fn(|| words.next_if(|w| w.parse::<usize>().is_ok())?.parse().ok()).collect()
        };
        match word {
            "transposed" if view.order == DimOrder::Same => view.order = DimOrder::Reversed,
            "permuted" if view.order == DimOrder::Same => {
                let order = numbers();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if order.is_empty() || sorted.iter().enumerate().any(|(i, n)| i != *n) {
                    return Err("`permuted` takes the numbers of all dims, from 0, in their new order".into());
                }
                view.order = DimOrder::Of(order);
            }
            "reshaped" if view.reshape == Reshape::No => {
                let counts = numbers();
                if counts.contains(&0) {
                    return Err(
                        "`reshaped` takes how many dims each dim of the file becomes: 1 or more".into()
                    );
                }
                view.reshape = if counts.is_empty() { Reshape::Any } else { Reshape::Into(counts) };
            }
            other => return Err(format!("it has `{other}` behind the name")),
        }
    }
    Ok(())
}

/// Most names that a pattern with alternatives stands for.
const MOST_NAMES: usize = 100;

/// All names that a pattern with alternatives stands for: `norm.(weight|gamma)` is two.
pub(crate) fn alternatives(pattern: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('(') {
        let (inner, after) = behind.split_once(')').ok_or("its `(` has no `)`")?;
        if before.contains(['|', ')']) || inner.contains('(') {
            return Err("alternatives are `(one|other)`".into());
        }
        let choices: Vec<&str> = inner.split('|').collect();
        // Counted before they are made.
        if all.len().saturating_mul(choices.len()) > MOST_NAMES {
            return Err(format!("its alternatives are more than {MOST_NAMES} names"));
        }
        all = all.iter().flat_map(|a| choices.iter().map(move |c| format!("{a}{before}{c}"))).collect();
        rest = after;
    }
    if rest.contains([')', '|']) {
        return Err("alternatives are `(one|other)`".into());
    }
    all.iter_mut().for_each(|name| name.push_str(rest));
    Ok(all)
}

/// `name`, which matches `from`, as `to` has it.
pub(super) fn renamed(from: &str, to: &str, name: &str) -> Option<String> {
    let stars = matched(from, name)?;
    let mut stars = stars.into_iter();
    let mut parts = to.split('*');
    let first = parts.next().unwrap_or_default().to_string();
    Some(parts.fold(first, |all, part| all + stars.next().unwrap_or_default() + part))
}

/// The texts of a pattern's stars in a name; the first are as short as possible.
pub(crate) fn matched<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let Some((before, after)) = pattern.split_once('*') else {
        return (pattern == name).then(Vec::new);
    };
    let mut rest = name.strip_prefix(before)?;
    let mut parts: Vec<&str> = after.split('*').collect();
    let last = parts.pop()?;
    let mut stars = Vec::with_capacity(parts.len() + 1);
    for part in parts {
        // The first occurrence leaves the longest text to the other stars.
        let (star, behind) = rest.split_once(part)?;
        stars.push(star);
        rest = behind;
    }
    stars.push(rest.strip_suffix(last)?);
    Some(stars)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn alternatives_are_counted_before_they_are_made() {
        assert_eq!(alternatives("(a|b).w.(c|)").unwrap(), ["a.w.c", "a.w.", "b.w.c", "b.w."]);
        assert_eq!(alternatives(&"(a|b)".repeat(6)).unwrap().len(), 64);
        for n in [7, 40, 200_000] {
            let why = alternatives(&"(a|b)".repeat(n)).unwrap_err();
            assert_eq!(why, "its alternatives are more than 100 names");
        }
        // As deep as it is long.
        assert_eq!(alternatives(&"(a)".repeat(200_000)).unwrap()[0].len(), 200_000);
    }

    #[test]
    fn many_stars_take_no_longer_than_they_are_long() {
        assert_eq!(matched("*.a.*.b", "x.a.y.a.z.b").unwrap(), ["x", "y.a.z"]);
        assert_eq!(matched("**b*", "abab").unwrap(), ["", "a", "ab"]);
        assert_eq!(matched("a*a", "a"), None);
        let stars = "*a".repeat(30);
        assert_eq!(matched(&stars, &"a".repeat(29)), None);
        assert_eq!(matched(&format!("{stars}*b"), &"a".repeat(60)), None);
        assert_eq!(matched(&stars, &"a".repeat(60)).unwrap().len(), 30);
    }
}
