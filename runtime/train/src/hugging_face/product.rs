//! `4 * n_embd`: products of numbers and names, which maps are written in.

/// The factors of a product.
pub(super) fn factors(text: &str) -> impl Iterator<Item = &str> {
    text.split('*').map(str::trim)
}

/// A product, of which `value` knows the names. An error is a name that it does not know.
pub(super) fn product<'a>(
    text: &'a str,
    mut value: impl FnMut(&'a str) -> Option<usize>,
) -> Result<usize, &'a str> {
    factors(text).try_fold(1usize, |all, name| {
        let n = name.parse().ok().or_else(|| value(name)).ok_or(name)?;
        all.checked_mul(n).ok_or(name)
    })
}

/// A dim and what is added to it: `seq + 2`. None where there is no such number.
pub(super) fn dim_and_more(text: &str) -> Option<(&str, usize)> {
    match text.split_once('+') {
        Some((dim, more)) => Some((dim.trim(), more.trim().parse().ok()?)),
        None => Some((text.trim(), 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_have_numbers_and_names() {
        let known = |name: &str| (name == "heads").then_some(3);
        assert_eq!(product("4 * heads*heads", known), Ok(36));
        assert_eq!(product("4 * queries", known), Err("queries"));
        assert_eq!((dim_and_more("seq + 2"), dim_and_more("seq")), (Some(("seq", 2)), Some(("seq", 0))));
        assert_eq!(dim_and_more("seq + two"), None);
    }
}
