//! Texts side by side, and names.

pub(crate) use meshwright_files::text::{
    bytes, counted, flops, memory_uses, seconds, short_seconds, thousands,
};

use meshwright_cost::machine::Machine;
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

/// A loss or a metric of a run that goes on, next to others: with four digits after the point, or with six in all where it is
/// huge.
pub(crate) fn progressing(v: f64) -> String {
    if v.abs() < 1e6 || !v.is_finite() { format!("{v:.4}") } else { format!("{v:.5e}") }
}

/// A number of a table: with six digits where it has more, and spelled as [`exact_number`] does.
pub(crate) fn short_number(v: f64) -> String {
    let whole = v.fract() == 0.0 && v.abs() < 1e15;
    exact_number(if whole { v } else { format!("{v:.5e}").parse().unwrap_or(v) })
}

/// The longest number outside of the usual range that is written without an exponent.
const DIGITS: usize = 8;

/// A number with all its digits, as people type it: the same in tables and in the names of folders.
pub(crate) fn exact_number(v: f64) -> String {
    let plain = v.to_string();
    let usual = v == 0.0 || (1e-4..1e15).contains(&v.abs()) || !v.is_finite();
    if usual || plain.len() <= DIGITS { plain } else { format!("{v:e}") }
}

/// A time that may be long: `12.3 s`, `3 min 05 s`, `46 h 05 min`.
pub(crate) fn duration(s: f64) -> String {
    const LONG: f64 = 2.0 * 3600.0;
    if s < LONG {
        return seconds(s);
    }
    let minutes = (s / 60.0).round() as u64;
    format!("{} h {:02} min", thousands(minutes / 60), minutes % 60)
}

/// The time of a step, from microseconds to hours.
pub(crate) fn step_time(s: f64) -> String {
    if s.abs() < 60.0 { short_seconds(s) } else { duration(s) }
}

/// The band of a time, with its reason: `+- 6 % (calibrated on this machine, 14 plans)`.
pub(crate) fn band(machine: &Machine, error: f64) -> String {
    format!("{} ({})", short_band(error), band_reason(machine))
}

/// The band of a time: `+- 6 %`.
pub(crate) fn short_band(error: f64) -> String {
    format!("+- {:.0} %", 100.0 * error)
}

/// Where the bands of a machine come from.
pub(crate) fn band_reason(machine: &Machine) -> String {
    match &machine.calibration {
        Some(c) => {
            let engine = c.engine.as_ref().map_or(String::new(), |engine| format!(" with {engine}"));
            format!("calibrated on {}{engine}, {}", c.on, counted(u64::from(c.plans), "plan"))
        }
        None => "data sheets, not calibrated".into(),
    }
}

/// A share: `12.3 %`, with more digits where it is small.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        v if v == 0.0 || v.abs() >= 1.0 => format!("{v:.1} %"),
        v => format!("{v:.3} %"),
    }
}

/// A name as Unix tools spell it: `all_reduce` is `all-reduce`.
pub(crate) fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_typed_or_have_six_digits() {
        let cases = [
            (0.1, "0.1"),
            (3e-4, "0.0003"),
            (1e-5, "0.00001"),
            (1e-7, "1e-7"),
            (0.123456789012, "0.123457"),
            (100.0, "100"),
            (1.0 / 3.0, "0.333333"),
            (2.0 / 3.0 * 1e-6, "6.66667e-7"),
            (0.1 + 0.2, "0.3"),
            (1234567.0, "1234567"),
            (0.0, "0"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "inf"),
        ];
        for (v, text) in cases {
            assert_eq!(short_number(v), text);
        }
    }

    #[test]
    fn long_times_are_in_hours_and_small_shares_have_digits() {
        assert_eq!((duration(12.3), duration(7199.0)), ("12.3 s".into(), "119 min 59 s".into()));
        assert_eq!(duration(46.0 * 3600.0 + 299.0), "46 h 05 min");
        assert_eq!((step_time(3e-3), step_time(1e5)), ("3.00 ms".into(), "27 h 47 min".into()));
        assert_eq!(
            (percent(0.0), percent(0.25), percent(0.0001)),
            ("0.0 %".into(), "25.0 %".into(), "0.010 %".into())
        );
    }
}
