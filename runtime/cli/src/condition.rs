//! Conditions on what has values by name, such as a run: `batch >= 50 and layout != tp`.

use crate::refusal::wrong;
use meshwright_diag::nearest;
use meshwright_files::Checked;
use std::cmp::Ordering;

/// How an order of two values is judged.
type Judge = fn(Ordering) -> bool;

/// How a value is compared.
const OPERATORS: [(&str, Judge); 6] = [
    ("!=", Ordering::is_ne),
    ("<=", Ordering::is_le),
    (">=", Ordering::is_ge),
    ("<", Ordering::is_lt),
    (">", Ordering::is_gt),
    ("=", Ordering::is_eq),
];

/// All of some comparisons.
#[derive(Clone, Debug)]
pub(crate) struct Condition(Vec<Comparison>);

#[derive(Clone, Debug)]
struct Comparison {
    name: String,
    operator: &'static str,
    holds: Judge,
    value: String,
}

impl Condition {
    /// Reads a condition, of which the names must be among `names`.
    pub(crate) fn parse(text: &str, names: &[String]) -> Result<Condition, String> {
        let comparisons = text.split(" and ").map(|part| comparison(part.trim(), names));
        Ok(Condition(comparisons.collect::<Result<_, _>>().map_err(|why| format!("`{text}`: {why}"))?))
    }

    /// Whether it holds where these are the values.
    pub(crate) fn holds(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|p| p.holds(value(&p.name)))
    }
}

/// What `--only` and `--skip` leave.
#[derive(Clone, Debug)]
pub(crate) struct ConditionFilter {
    only: Vec<Condition>,
    skip: Vec<Condition>,
}

impl ConditionFilter {
    /// Reads the conditions of both, of which the names must be among `names`.
    pub(crate) fn read(only: &[String], skip: &[String], names: &[String]) -> Checked<ConditionFilter> {
        let read = |option: &str, texts: &[String]| -> Checked<Vec<Condition>> {
            let one = |text: &String| {
                Condition::parse(text, names).map_err(|why| Box::new(wrong(format!("`{option}` {why}"))))
            };
            texts.iter().map(one).collect()
        };
        Ok(ConditionFilter { only: read("--only", only)?, skip: read("--skip", skip)? })
    }

    /// Whether they leave what has these values.
    pub(crate) fn leaves(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        self.only.iter().all(|c| c.holds(&value)) && !self.skip.iter().any(|c| c.holds(&value))
    }
}

fn comparison(text: &str, names: &[String]) -> Result<Comparison, String> {
    // The first one: values, such as rules of a layout, may hold others.
    let at = OPERATORS.iter().filter_map(|(op, holds)| Some((text.find(op)?, *op, *holds)));
    let first = at.min_by_key(|(at, op, _)| (*at, std::cmp::Reverse(op.len())));
    let found = first.map(|(at, op, holds)| ((&text[..at], &text[at + op.len()..]), op, holds));
    let ((name, value), operator, holds) =
        found.ok_or_else(|| format!("`{text}` compares nothing: write for example `batch >= 50`"))?;
    let (name, value) = (name.trim(), value.trim_start_matches('=').trim().trim_matches(['"', '\'']));
    if !names.iter().any(|n| n == name) {
        let near = nearest(name, names.iter().map(String::as_str));
        let near = near.map_or(".".into(), |n| format!("; did you mean `{n}`?"));
        return Err(format!("nothing here is called `{name}`{near} There are {}", names.join(", ")));
    }
    Ok(Comparison { name: name.into(), operator, holds, value: value.into() })
}

impl Comparison {
    fn holds(&self, value: Option<String>) -> bool {
        // A run on one device has no layout: it is not any of them.
        let Some(is) = value else { return self.operator == "!=" };
        let number = |t: &str| t.replace('_', "").parse::<f64>().ok();
        let order = match number(&is).zip(number(&self.value)) {
            Some((a, b)) => a.total_cmp(&b),
            None => is.as_str().cmp(&self.value),
        };
        (self.holds)(order)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_numbers_and_words() {
        let names: Vec<String> = ["layout", "mesh", "seed", "batch", "lr"].map(String::from).into();
        let values = [Some("dp"), Some("2x2"), Some("1"), Some("100"), Some("0.01")];
        let of = |text: &str, values: [Option<&str>; 5]| {
            let value = |name: &str| values[names.iter().position(|n| n == name).unwrap()].map(String::from);
            Condition::parse(text, &names).unwrap().holds(value)
        };
        let holds = |text: &str| of(text, values);
        assert!(holds("batch >= 50 and layout != tp") && !holds("batch >= 50 and layout = tp"));
        assert!(holds("batch < 1_000") && !holds("batch < 20") && holds("lr <= 1e-2") && holds("mesh = 2x2"));
        assert!(holds("layout != 'batch -> r'") && holds("mesh <= 2x2") && !holds("layout = a<=b"));
        assert!(holds("seed == 1") && holds("layout = 'dp'"));
        let on_one = |text: &str| of(text, [None, None, Some("1"), Some("100"), Some("0.01")]);
        assert!(on_one("layout != tp") && !on_one("layout = tp") && !on_one("mesh < 4"));
        let wrong = Condition::parse("bacth > 5", &names).unwrap_err();
        assert!(wrong.contains("did you mean `batch`?") && wrong.contains("layout, mesh"), "{wrong}");
        assert!(Condition::parse("batch", &names).unwrap_err().contains("compares nothing"));
    }
}
