//! Numbers as people read them, and texts beside each other.

use similar::TextDiff;
use std::time::Duration;

/// Time after which a diff is no longer made as short as can be: that takes the product of what differs.
const SHORTENED_FOR: Duration = Duration::from_millis(500);

/// How a text differs from another, line by line.
pub(crate) fn line_diff<'t>(old: &'t str, new: &'t str) -> TextDiff<'t, 't, 't, str> {
    TextDiff::configure().timeout(SHORTENED_FOR).diff_lines(old, new)
}

/// `814,090`.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Three significant digits: `3.11`, `15.3`, `153`, `1,234`.
fn three(x: f64) -> String {
    match x {
        _ if x >= 999.5 => thousands(x.round() as u64),
        _ if x >= 99.95 => format!("{x:.0}"),
        _ if x >= 9.995 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// Bytes with a unit of a power of 1024: `512 B`, `3.11 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut x = n as f64 / 1024.0;
    let mut unit = 0;
    while x >= 999.5 && unit + 1 < UNITS.len() {
        x /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three(x), UNITS[unit])
}

/// Floating-point operations with a unit of a power of 1000: `0.32 GFLOP`.
pub(crate) fn flops(n: u64) -> String {
    const UNITS: [&str; 5] = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"];
    if n < 1000 {
        return format!("{n} FLOP");
    }
    let mut x = n as f64;
    let mut unit = 0;
    while x >= 999.5 && unit + 1 < UNITS.len() {
        x /= 1000.0;
        unit += 1;
    }
    format!("{} {}", three(x), UNITS[unit])
}

/// A duration: `0.42 s`, `12.3 s`, `3 min 05 s`.
pub(crate) fn seconds(s: f64) -> String {
    if s < 99.95 {
        format!("{} s", three(s))
    } else {
        let whole = s.round() as u64;
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

/// `1 step`, `2 steps`.
pub(crate) fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// A name as Unix tools spell it: `all_reduce` is `all-reduce`.
pub(crate) fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact_at_the_borders() {
        let of = |x: &[u64], f: fn(u64) -> String| x.iter().map(|n| f(*n)).collect::<Vec<_>>().join("|");
        assert_eq!(of(&[0, 999, 1000, 814_090, 1_000_000], thousands), "0|999|1,000|814,090|1,000,000");
        assert_eq!(
            of(&[0, 1023, 1024, 156_800, 1_023_590, 3_256_364], bytes),
            "0 B|1023 B|1.00 KiB|153 KiB|0.98 MiB|3.11 MiB"
        );
        assert_eq!(of(&[999, 1000, 999_499, 324_000_000], flops), "999 FLOP|1.00 kFLOP|999 kFLOP|324 MFLOP");
        assert_eq!(seconds(0.421), "0.42 s");
        assert_eq!(seconds(185.2), "3 min 05 s");
        assert_eq!(counted(1, "step") + &counted(2000, "step"), "1 step2,000 steps");
    }
}
