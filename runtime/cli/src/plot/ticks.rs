//! Where the marks of an axis stand, and what they are called.

/// At most so many marks in a range: multiples of 1, 2 or 5 times a power of ten, and what they are called.
pub(super) fn ticks((low, high): (f64, f64), most: usize) -> Vec<(f64, String)> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![(low, name(low, 0.0))];
    }
    let rough = span / most.max(2) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough * 0.999_999);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let count = (last - first).max(0.0) as usize;
    (0..=count).map(|i| (first + i as f64) * step).map(|v| (v, name(v, step))).collect()
}

/// The same of logarithms to the base of ten: at powers of ten, and where these are few at their multiples.
pub(super) fn log_ticks((low, high): (f64, f64), most: usize) -> Vec<(f64, String)> {
    let decades = high - low;
    let all = |factors: &[f64], every: i32| -> Vec<(f64, String)> {
        let powers = (low.floor() as i32..=high.ceil() as i32).filter(|p| p.rem_euclid(every) == 0);
        let values = powers.flat_map(|p| factors.iter().map(move |f| f * 10f64.powi(p)));
        let inside = values.filter(|v| (low - 1e-9..=high + 1e-9).contains(&v.log10()));
        inside.map(|v| (v.log10(), name(v, v))).collect()
    };
    for (factors, every) in [(&[1.0, 2.0, 5.0][..], 1), (&[1.0][..], 1), (&[1.0][..], 2), (&[1.0][..], 5)] {
        let found = all(factors, every);
        // Within a decade few of these are in the range: even marks say more.
        let enough = if decades > 1.0 { 2 } else { 4 };
        if found.len() <= most.max(2) && found.len() >= enough {
            return found;
        }
    }
    if decades > 1.0 {
        return all(&[1.0], (decades as i32 / 2).max(1));
    }
    let inside = ticks((10f64.powf(low), 10f64.powf(high)), most);
    inside.into_iter().filter(|t| t.0 > 0.0).map(|(v, name)| (v.log10(), name)).collect()
}

/// A number in few characters: as many digits as a step of the axis needs.
fn name(v: f64, step: f64) -> String {
    let size = v.abs().max(step.abs());
    if v == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e6).contains(&size) {
        let text = format!("{v:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        return format!("{digits}e{power}");
    }
    let digits = if step > 0.0 { (-(step * 1.000_001).log10().floor()).max(0.0) as usize } else { 4 };
    let text = format!("{v:.digits$}");
    if step > 0.0 { text } else { text.trim_end_matches('0').trim_end_matches('.').into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[(f64, String)]) -> String {
        all.iter().map(|t| t.1.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn marks_are_round() {
        for (range, most, expected) in [
            ((0.0, 100.0), 5, "0 20 40 60 80 100"),
            ((0.0, 1.0), 4, "0 0.5 1.0"),
            ((1.0, 48.0), 5, "10 20 30 40"),
            ((0.123, 0.131), 4, "0.124 0.126 0.128 0.130"),
            ((-1.0, 1.0), 4, "-1.0 -0.5 0 0.5 1.0"),
            ((0.0, 2e7), 4, "0 5e6 1e7 1.5e7 2e7"),
            ((0.0, 3e-6), 3, "0 1e-6 2e-6 3e-6"),
        ] {
            assert_eq!(names(&ticks(range, most)), expected, "{range:?}");
        }
        assert_eq!(names(&ticks((2.0, 2.0), 5)), "2");
    }

    #[test]
    fn logarithms_are_named_by_their_numbers() {
        assert_eq!(names(&log_ticks((-2.0, 1.0), 5)), "0.01 0.1 1 10");
        assert_eq!(names(&log_ticks((-0.31, 0.71), 6)), "0.5 1 2 5");
        assert_eq!(names(&log_ticks((-12.0, 12.0), 6)), "1e-10 1e-5 1 1e5 1e10".replace("1e5", "100000"));
        let decade = log_ticks((0.32f64.log10(), 1.3f64.log10()), 6);
        assert_eq!(names(&decade), "0.4 0.6 0.8 1.0 1.2");
        // Less than from one round number to the next.
        let close = log_ticks((1.05f64.log10(), 1.45f64.log10()), 5);
        assert_eq!(names(&close), "1.1 1.2 1.3 1.4");
        assert!((close[0].0 - 1.1f64.log10()).abs() < 1e-12);
    }
}
