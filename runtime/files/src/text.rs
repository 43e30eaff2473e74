//! Numbers and lists as people read them.

use meshwright_plan::PeakMemory;
use std::borrow::Cow;

/// The most names that a message lists.
const LISTED: usize = 6;

/// A text as a cell of CSV: one that a spreadsheet would take for a formula and compute begins with an apostrophe, which says
/// that it is text. Numbers are none of these texts.
pub fn csv_text(text: &str) -> Cow<'_, str> {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        true => format!("'{text}").into(),
        false => text.into(),
    }
}

/// `814,090`.
pub fn thousands(n: u64) -> String {
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
pub fn bytes(n: u64) -> String {
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

/// What memory is used for, without what takes none: `parameters 2.0 MiB, gradients 2.0 MiB`.
pub fn memory_uses(memory: &PeakMemory) -> String {
    let some = memory.uses().into_iter().filter(|u| u.1 > 0);
    some.map(|(name, size)| format!("{name} {}", bytes(size))).collect::<Vec<_>>().join(", ")
}

/// Floating-point operations with a unit of a power of 1000: `0.32 GFLOP`.
pub fn flops(n: u64) -> String {
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
pub fn seconds(s: f64) -> String {
    if s < 99.95 {
        format!("{} s", three(s))
    } else {
        let whole = s.round() as u64;
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

/// A duration of any size: `42.1 us`, `3.07 ms`, `0.42 s`, `3 min 05 s`.
pub fn short_seconds(s: f64) -> String {
    match s.abs() {
        0.0 => "0 s".into(),
        a if a < 1e-3 => format!("{} us", three(s * 1e6)),
        a if a < 0.1 => format!("{} ms", three(s * 1e3)),
        _ => seconds(s),
    }
}

/// `1 step`, `2 steps`.
pub fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// "`a`, `b` and 3 more".
pub fn listed(names: &[&str]) -> String {
    let some: Vec<String> = names.iter().take(LISTED).map(|n| format!("`{n}`")).collect();
    let more = names.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    some.join(", ") + &rest
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
