//! Lists and ranges, as the command line and the file of a sweep have them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One value or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a value or a list of values; a size is a whole number from 1 on")]
pub(crate) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        OneOrMany::Many(Vec::new())
    }
}

impl<T: Clone> OneOrMany<T> {
    /// All of them.
    pub(crate) fn all(&self) -> Vec<T> {
        match self {
            OneOrMany::One(value) => vec![value.clone()],
            OneOrMany::Many(values) => values.clone(),
        }
    }
}

/// The values of a const: some, or those of a range, of which a search draws.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConstValues {
    List(Vec<f64>),
    Range(ValueRange),
}

/// From `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Whether the logarithm is drawn evenly, not the value.
    pub(crate) log: bool,
}

/// How many digits of a drawn value count: its name is its value, and stays readable.
const DIGITS: i32 = 4;

impl ValueRange {
    /// The value at a share of the range, between 0 and 1.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let between = |a: f64, b: f64| a + (b - a) * share;
        let exact = if self.log {
            between(self.low.ln(), self.high.ln()).exp()
        } else {
            between(self.low, self.high)
        };
        let digits = DIGITS - 1;
        // As decimal text, so that what is shown reads back as the same number.
        format!("{exact:.digits$e}", digits = digits as usize).parse().unwrap_or(exact)
    }

    fn parse(text: &str) -> Result<ValueRange, String> {
        let wrong = || {
            format!(
                "`{text}` is not a range: write the least and the greatest value, such as 0.1..0.5 or log:1e-4..1e-1"
            )
        };
        let (log, ends) = text.strip_prefix("log:").map_or((false, text), |rest| (true, rest));
        let (low, high) = ends.split_once("..").ok_or_else(wrong)?;
        let number = |t: &str| t.trim().replace('_', "").parse::<f64>().ok().filter(|v| v.is_finite());
        let (low, high) = number(low).zip(number(high)).ok_or_else(wrong)?;
        if low >= high {
            return Err(format!("`{text}`: {low} must be less than {high}"));
        }
        if log && low <= 0.0 {
            return Err(format!("`{text}`: a logarithm needs values above 0, not {low}"));
        }
        Ok(ValueRange { low, high, log })
    }
}

impl ConstValues {
    /// `0.1,0.2`, `0.1..0.2` or `log:1e-4..1e-1`.
    pub(crate) fn parse(text: &str) -> Result<ConstValues, String> {
        if text.contains("..") || text.starts_with("log:") {
            return ValueRange::parse(text).map(ConstValues::Range);
        }
        let number = |t: &str| match t.trim().replace('_', "").parse::<f64>() {
            Ok(v) if v.is_finite() => Ok(v),
            _ => Err(format!("`{t}` is not a number; write for example 0.1,0.01")),
        };
        Ok(ConstValues::List(text.split(',').map(number).collect::<Result<_, _>>()?))
    }
}

impl Serialize for ConstValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ConstValues::List(values) => values.serialize(serializer),
            ConstValues::Range(ValueRange { low, high, log }) => {
                let log = if *log { "log:" } else { "" };
                serializer.serialize_str(&format!("{log}{low}..{high}"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for ConstValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected a number, a list of numbers, or a range such as \"log:1e-4..1e-1\""
        )]
        enum WrittenValues {
            Number(f64),
            List(Vec<f64>),
            Range(String),
        }
        match WrittenValues::deserialize(deserializer)? {
            WrittenValues::Number(v) => Ok(ConstValues::List(vec![v])),
            WrittenValues::List(values) => Ok(ConstValues::List(values)),
            WrittenValues::Range(text) => ConstValues::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Layouts of an option: rules are one, and commas part the names of others.
pub(crate) fn layouts(text: &str) -> Vec<String> {
    let rules = text.contains("->") || text.contains(':');
    parts(text, rules)
}

/// Meshes of an option: one with the names of its axes is one, and commas part the sizes of others.
pub(crate) fn meshes(text: &str) -> Vec<String> {
    parts(text, text.contains(['=', ':']))
}

fn parts(text: &str, one: bool) -> Vec<String> {
    match one {
        true => vec![text.trim().to_string()],
        false => text.split(',').map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_told_apart() {
        assert_eq!(layouts("dp, tp,my.layout"), ["dp", "tp", "my.layout"]);
        assert_eq!(layouts("batch, seq -> r; hidden -> c"), ["batch, seq -> r; hidden -> c"]);
        assert_eq!(meshes("4,2x2"), ["4", "2x2"]);
        assert_eq!(meshes("r=2,c=2"), ["r=2,c=2"]);
        assert_eq!(ConstValues::parse("0.1,1e-2").unwrap(), ConstValues::List(vec![0.1, 0.01]));
        let range = |low, high, log| ConstValues::Range(ValueRange { low, high, log });
        assert_eq!(ConstValues::parse("log:1e-4..1e-1").unwrap(), range(1e-4, 1e-1, true));
        assert_eq!(ConstValues::parse("-1..0.5").unwrap(), range(-1.0, 0.5, false));
        for (wrong, why) in [
            ("log:0..1", "above 0"),
            ("1..1", "less than"),
            ("log:5", "not a range"),
            ("a..b", "not a range"),
            ("0.1,x", "not a number"),
            ("nan", "not a number"),
        ] {
            assert!(ConstValues::parse(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn drawn_values_are_short_and_within_the_range() {
        let log = ValueRange { low: 1e-4, high: 1e-1, log: true };
        assert_eq!((log.at(0.0), log.at(1.0), log.at(0.5)), (1e-4, 1e-1, 0.003162));
        let even = ValueRange { low: 0.0, high: 3.0, log: false };
        assert_eq!((even.at(0.5), even.at(1.0 / 7.0)), (1.5, 0.4286));
    }

    #[test]
    fn a_file_has_them_too() {
        let of = |text: &str| toml::from_str::<meshwright_sorted::SortedMap<String, ConstValues>>(text);
        let read = of("a = 1\nb = [0.1, 2]\nc = \"log:0.1..1\"\n").unwrap();
        assert_eq!(read["a"], ConstValues::List(vec![1.0]));
        assert_eq!(of(&toml::to_string(&read).unwrap()).unwrap(), read);
        assert!(of("a = true\n").unwrap_err().to_string().contains("expected a number, a list"));
    }
}
