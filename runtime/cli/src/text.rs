//! Texts beside each other, and names.

pub(crate) use meshwright_train::text::{bytes, counted, flops, seconds, thousands};

use similar::TextDiff;
use std::time::Duration;

/// Time after which a diff is no longer made as short as can be: that takes the product of what differs.
const SHORTENED_FOR: Duration = Duration::from_millis(500);

/// How a text differs from another, line by line.
pub(crate) fn line_diff<'t>(old: &'t str, new: &'t str) -> TextDiff<'t, 't, 't, str> {
    TextDiff::configure().timeout(SHORTENED_FOR).diff_lines(old, new)
}

/// A loss or a metric: with four digits after the point, or an exponent where that would say nothing.
pub(crate) fn measure(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if !(1e-3..1e5).contains(&a) && v.is_finite() => format!("{v:.3e}"),
        _ => format!("{v:.4}"),
    }
}

/// A name as Unix tools spell it: `all_reduce` is `all-reduce`.
pub(crate) fn dashed(name: &str) -> String {
    name.replace('_', "-")
}
