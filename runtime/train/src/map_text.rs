//! The text of a map, which may say only what it has beyond another one: `extends = "llama"`.

use meshwright_runs::catalog::{MAPS, find};
use toml::{Table, Value};

/// The most maps that extend one another.
const MOST: usize = 8;

/// The table of a text, with what it does not say taken from the map that it extends: tables key by key, and rules for tensors
/// behind its own. `renamed` says how names of tensors begin here in place of there; `removed`, such as `tokens.pad_token_id`,
/// what it has not.
pub(super) fn merged(text: &str) -> Result<Table, String> {
    merged_within(text, MOST)
}

fn merged_within(text: &str, most: usize) -> Result<Table, String> {
    let mut own: Table = text.parse().map_err(|e: toml::de::Error| e.message().to_string())?;
    let (renamed, removed) = (own.remove("renamed"), own.remove("removed"));
    let Some(base) = own.remove("extends") else { return Ok(own) };
    let base = base.as_str().unwrap_or_default();
    let shipped =
        find(MAPS, base).ok_or_else(|| format!("it extends `{base}`, and no map ships of that name"))?;
    if most == 0 {
        return Err(format!("more than {MOST} maps extend one another"));
    }
    let mut all = merged_within(shipped.text, most - 1)?;
    for (from, to) in renamed.iter().filter_map(Value::as_table).flatten() {
        let to = to.as_str().unwrap_or_default();
        all.iter_mut().for_each(|(_, value)| rename(value, from, to));
    }
    for path in removed.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str) {
        let (table, key) =
            path.split_once('.').ok_or_else(|| format!("`{path}` in `removed` is no key of a table"))?;
        let there = all.get_mut(table).and_then(Value::as_table_mut).and_then(|t| t.remove(key));
        there.ok_or_else(|| format!("it removes `{path}`, which `{base}` has not"))?;
    }
    for (key, value) in own {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(there)), Value::Table(more)) => there.extend(more),
            // The first rule for a name counts.
            (Some(Value::String(rules)), Value::String(more)) if key == "weights" => {
                *rules = format!("{more}\n{rules}")
            }
            (_, value) => drop(all.insert(key, value)),
        }
    }
    Ok(all)
}

/// Puts another beginning on the names of tensors in a value: they stand at the beginning of a text, or behind a blank.
fn rename(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => {
            let behind = text.replace(&format!(" {from}"), &format!(" {to}"));
            *text = match behind.strip_prefix(from) {
                Some(rest) => format!("{to}{rest}"),
                None => behind,
            };
        }
        Value::Array(all) => all.iter_mut().for_each(|v| rename(v, from, to)),
        Value::Table(all) => {
            let renamed = std::mem::take(all).into_iter().map(|(key, mut value)| {
                rename(&mut value, from, to);
                let key = key.strip_prefix(from).map(|rest| format!("{to}{rest}")).unwrap_or(key);
                (key, value)
            });
            *all = renamed.collect();
        }
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_what_it_extends_and_more() {
        let text = "extends = \"bert\"\nclass = \"X\"\nweights = \"a = b\"\nrenamed = { \"bert.\" = \"x.\" }\n[fixed]\nmodel_type = \"x\"";
        let (all, base) = (merged(text).unwrap(), merged(find(MAPS, "bert").unwrap().text).unwrap());
        assert_eq!((all["class"].as_str(), all["model"].as_str()), (Some("X"), Some("bert")));
        let rules = all["weights"].as_str().unwrap();
        assert!(
            rules.contains("= x.encoder.layer.#.output")
                && rules.starts_with("a = b")
                && !rules.contains(" bert.")
        );
        assert_eq!(all["fixed"]["model_type"].as_str(), Some("x"));
        assert_eq!(all["fixed"]["hidden_act"], base["fixed"]["hidden_act"]);
        let tied = all["tied"].as_table().unwrap();
        assert!(tied.values().any(|v| v.as_str().unwrap().starts_with("x.embeddings")), "{tied:?}");
        let less = merged("extends = \"bert\"\nremoved = [\"tokens.pad_token_id\"]").unwrap();
        assert_eq!(less["tokens"].as_table().unwrap().len() + 1, base["tokens"].as_table().unwrap().len());
        let wrong = merged("extends = \"bert\"\nremoved = [\"tokens.pad\"]").unwrap_err();
        assert!(wrong.contains("it removes `tokens.pad`, which `bert` has not"), "{wrong}");
    }
}
