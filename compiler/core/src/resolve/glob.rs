//! Patterns of parameter paths.

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

#[cfg(test)]
mod tests {
    use super::matches;

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
