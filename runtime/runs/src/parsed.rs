//! Files in folders of runs and sweeps, as values: what does not parse is named with its line.

use serde::de::DeserializeOwned;

/// The value of a TOML text.
///
/// # Errors
///
/// The line, the column and the reason.
pub fn toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|at| text.get(..at.start)).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        located(line, column, e.message())
    })
}

/// The value of a JSON text.
///
/// # Errors
///
/// The line, the column and the reason.
pub fn json<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        let why = e.to_string();
        let place = format!(" at line {line} column {column}");
        located(line, column, why.strip_suffix(&place).unwrap_or(&why))
    })
}

fn located(line: usize, column: usize, why: &str) -> String {
    format!("line {line}, column {column}: {}", why.trim().replace('\n', ", "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_does_not_parse_has_its_place() {
        type Sizes = BTreeMap<String, usize>;
        let of_toml = |text: &str| toml::<Sizes>(text).unwrap_err();
        let of_json = |text: &str| json::<Sizes>(text.as_bytes()).unwrap_err();
        assert!(of_toml("a = 1\nb = \"x\"\n").starts_with("line 2, column 5: invalid type: string"));
        assert!(
            of_toml("a = 1\n\nb = = 2\n").starts_with("line 3, column 5: "),
            "{}",
            of_toml("a = 1\n\nb = = 2\n")
        );
        assert!(of_json("{\"a\": 1,\n\"b\": \"x\"}").starts_with("line 2, column 8: invalid type: string"));
        assert!(
            of_json("{\"a\": 1,\n").starts_with("line 2, column 0: EOF while"),
            "{}",
            of_json("{\"a\": 1,\n")
        );
    }
}
