//! Patterns of parameter paths.

use meshwright_sorted::SortedMap;
use std::ops::Bound::{Included, Unbounded};

/// Whether a path matches: `*` stands for any text, and `layers.*` also for `layers` itself.
pub fn matches(pattern: &str, path: &str) -> bool {
    matches_text(pattern.as_bytes(), path.as_bytes()) || pattern.strip_suffix(".*").is_some_and(|p| p == path)
}

/// Goes back to the last `*` only, so that many of them take no longer than the product of the lengths.
fn matches_text(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((star_p, star_t)) = star {
            star = Some((star_p, star_t + 1));
            (p, t) = (star_p + 1, star_t + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Positions along a loop in a pattern, from and to where they are said.
pub(super) type LoopPositions<'p> = (&'p str, Option<usize>, Option<usize>);

/// A pattern without the positions of loops in it, and these: `layers[0..2].*` is `layers.*`, from 0 to 2 of `layers`.
pub(super) fn positions(pattern: &str) -> (String, Vec<LoopPositions<'_>>) {
    let (mut plain, mut found, mut rest) = (String::new(), Vec::new(), pattern);
    while let Some((before, inner)) = rest.split_once('[') {
        let (inner, after) = inner.split_once(']').unwrap_or((inner, ""));
        let number = |t: &str| t.replace('_', "").parse::<usize>().ok();
        let (from, to) = match inner.split_once("..") {
            Some((from, to)) => (number(from), number(to)),
            None => (number(inner), number(inner).map(|n| n.saturating_add(1))),
        };
        found.push((before.rsplit('.').next().unwrap_or(before), from, to));
        plain.push_str(before);
        rest = after;
    }
    plain.push_str(rest);
    (plain, found)
}

/// The text before the first `*` of a pattern, which every path that matches begins with.
fn prefix(pattern: &str) -> &str {
    let literal = pattern.split('*').next().unwrap_or("");
    // `layers.*` stands for `layers` too.
    if literal.len() + 1 == pattern.len() { literal.strip_suffix('.').unwrap_or(literal) } else { literal }
}

/// The text behind the last `*` of a pattern, which every path that matches ends with.
fn suffix(pattern: &str) -> &str {
    pattern.rsplit('*').next().unwrap_or("")
}

/// Paths by which a pattern finds those that it matches without a look at all others: by its beginning, or its end.
#[derive(Debug, Default)]
pub(crate) struct PathIndex<'p> {
    forward: SortedMap<&'p str, Vec<usize>>,
    /// Paths from their end to their beginning.
    backward: SortedMap<String, &'p str>,
}

impl<'p> PathIndex<'p> {
    /// Of these paths, known by their positions.
    pub(crate) fn new(paths: impl IntoIterator<Item = &'p str>) -> Self {
        let mut index = PathIndex::default();
        for (i, path) in paths.into_iter().enumerate() {
            index.forward.entry(path).or_default().push(i);
            index.backward.insert(path.chars().rev().collect(), path);
        }
        index
    }

    /// Positions of the paths that match, ascending.
    pub(crate) fn matching(&self, pattern: &str) -> Vec<usize> {
        let (begin, end) = (prefix(pattern), suffix(pattern));
        let mut found: Vec<usize> = if !pattern.contains('*') {
            self.forward.get(pattern).cloned().unwrap_or_default()
        } else if begin.is_empty() && !end.is_empty() {
            let end: String = end.chars().rev().collect();
            let range = self.backward.range::<String, _>(&end..).take_while(|(p, _)| p.starts_with(&end));
            let hits =
                range.filter(|(_, path)| matches(pattern, path)).filter_map(|(_, p)| self.forward.get(*p));
            hits.flatten().copied().collect()
        } else {
            let range = self.forward.range::<str, _>((Included(begin), Unbounded));
            let near = range.take_while(|(path, _)| path.starts_with(begin));
            near.filter(|(path, _)| matches(pattern, path)).flat_map(|(_, at)| at.iter().copied()).collect()
        };
        found.sort_unstable();
        found
    }
}

/// Number of patterns that are compared one by one.
const FEW: usize = 8;

/// Patterns by which a path finds those that match it without a look at all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct PatternIndex {
    /// By what paths begin with.
    beginnings: SortedMap<String, Vec<usize>>,
    /// By what paths end with, for patterns that begin with `*`.
    ends: SortedMap<String, Vec<usize>>,
}

impl PatternIndex {
    /// Of these patterns, known by their positions.
    pub(crate) fn new<'p>(patterns: impl IntoIterator<Item = (usize, &'p str)>) -> Self {
        let mut index = PatternIndex::default();
        for (i, pattern) in patterns {
            let begin = prefix(pattern);
            let (map, key) = if begin.is_empty() {
                (&mut index.ends, suffix(pattern))
            } else {
                (&mut index.beginnings, begin)
            };
            map.entry(key.to_string()).or_default().push(i);
        }
        index
    }

    /// Positions of the patterns that may match a path, ascending.
    pub(crate) fn candidates(&self, path: &str) -> Vec<usize> {
        // Most layouts have few patterns, and many paths are asked for.
        if self.beginnings.len() + self.ends.len() <= FEW {
            let begin = self.beginnings.iter().filter(|(begin, _)| path.starts_with(begin.as_str()));
            let end = self.ends.iter().filter(|(end, _)| path.ends_with(end.as_str()));
            let mut found: Vec<usize> = begin.chain(end).flat_map(|(_, at)| at).copied().collect();
            found.sort_unstable();
            return found;
        }
        let cuts = || (0..=path.len()).filter(|i| path.is_char_boundary(*i));
        let begins = cuts().filter_map(|i| self.beginnings.get(&path[..i]));
        let mut found: Vec<usize> =
            begins.chain(cuts().filter_map(|i| self.ends.get(&path[i..]))).flatten().copied().collect();
        found.sort_unstable();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{PathIndex, PatternIndex, matches};

    #[test]
    fn indexes_find_what_matches() {
        let paths = ["layers.q.w", "layers.q.b", "layers", "layers2.w", "h.w", "w", "", "h.w"];
        let patterns =
            ["*", "*.w", "layers.*", "layers", "layers.*.w", "h*", "*q*", "*.*", "a*b", "w", ".*", "*w"];
        let of_paths = PathIndex::new(paths);
        let of_patterns = PatternIndex::new(patterns.into_iter().enumerate());
        for (k, pattern) in patterns.iter().enumerate() {
            let slow: Vec<usize> = (0..paths.len()).filter(|i| matches(pattern, paths[*i])).collect();
            assert_eq!(of_paths.matching(pattern), slow, "{pattern}");
            for i in slow {
                assert!(of_patterns.candidates(paths[i]).contains(&k), "{pattern} {}", paths[i]);
            }
            let alone = PatternIndex::new([(k, *pattern)]);
            for path in paths {
                let found = !alone.candidates(path).is_empty();
                assert_eq!(found, of_patterns.candidates(path).contains(&k), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn stars_span_dots() {
        for (pattern, path, yes) in [
            ("*.b", "layers.q.b", true),
            ("*.b", "layers.q.w", false),
            ("layers.*.w", "layers.attention.q.w", true),
            ("layers.*", "layers", true),
            ("layers.*", "layers2.w", false),
            ("*", "w", true),
            ("h.w", "h.w", true),
            ("h", "h.w", false),
            ("a*b*c", "aXbXbXc", true),
        ] {
            assert_eq!(matches(pattern, path), yes, "{pattern} {path}");
        }
        let stars = "*a".repeat(40);
        assert!(!matches(&stars, &"a".repeat(39)));
    }
}
