//! Checks of a `tokenizer.json` before the library reads it. The library checks little: a malformed file makes it panic, or use
//! all memory.

use serde_json::Value;

/// The longest text outside of the vocabulary, such as patterns, prefixes and replacements.
const LONGEST: usize = 1 << 14;

/// The longest replacement, prefix or suffix.
const LONGEST_CONTENT: usize = 1 << 10;

/// Limit of the growth of a text, before it is cut into tokens and when it is made from them.
const MOST_GROWTH: usize = 64;

/// The most steps, all lists of them counted.
const MOST_STEPS: usize = 1000;

/// Checks that a file asks for nothing that the library cannot do. An error names the fault.
pub(super) fn check(tokenizer: &Value) -> Result<(), String> {
    for part in ["normalizer", "pre_tokenizer", "decoder", "post_processor"] {
        let Some(value) = tokenizer.get(part).filter(|v| !v.is_null()) else { continue };
        let mut steps = Vec::new();
        listed(value, part, &mut steps)?;
        let mut growth = 1usize;
        for step in &steps {
            checked_step(step, part)?;
            growth = growth.saturating_mul(grows(step));
            if growth > MOST_GROWTH {
                return Err(format!(
                    "its `{part}` makes a text up to {growth} times as long; {MOST_GROWTH} times is the most"
                ));
            }
        }
    }
    for token in tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        short(token.get("content"), LONGEST, "added_tokens")?;
    }
    tokenizer.get("model").map_or(Ok(()), checked_model)
}

/// The steps of a part, with those of lists in it.
fn listed<'a>(value: &'a Value, part: &str, out: &mut Vec<&'a Value>) -> Result<(), String> {
    if out.len() >= MOST_STEPS {
        return Err(format!("its `{part}` has more than {MOST_STEPS} steps"));
    }
    out.push(value);
    let lists = ["normalizers", "pretokenizers", "decoders", "processors"].into_iter();
    let mut inner = lists.filter_map(|key| value.get(key)?.as_array()).flatten();
    inner.try_for_each(|v| listed(v, part, out))
}

fn checked_step(step: &Value, part: &str) -> Result<(), String> {
    let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
    for (key, value) in
        step.as_object().into_iter().flatten().filter(|(key, _)| *key != "precompiled_charsmap")
    {
        let most = if key == "pattern" { LONGEST } else { LONGEST_CONTENT };
        short(Some(value), most, &format!("{part}: {kind}.{key}"))?;
    }
    let pattern = step.get("pattern").and_then(|p| p.get("String").or(p.get("Regex")).or(Some(p)));
    if pattern.and_then(Value::as_str) == Some("") {
        return Err(format!("its `{part}` has a `{kind}` with an empty `pattern`"));
    }
    match (kind, step.get("precompiled_charsmap").and_then(Value::as_str)) {
        (_, Some(text)) => {
            charsmap(text).map_err(|why| format!("the `precompiled_charsmap` of its `{part}` {why}"))
        }
        ("Precompiled", None) => {
            Err(format!("a `Precompiled` of its `{part}` has no `precompiled_charsmap`"))
        }
        _ => Ok(()),
    }
}

/// That a text of the file, or what is in a list or a table of it, is not too long.
fn short(value: Option<&Value>, most: usize, place: &str) -> Result<(), String> {
    match value {
        Some(Value::String(text)) if text.len() > most => {
            Err(format!("its `{place}` has a text of {} bytes, more than {most}", text.len()))
        }
        Some(Value::Object(table)) => table
            .iter()
            .filter(|(key, _)| !STEPS.contains(&key.as_str()))
            .try_for_each(|(_, v)| short(Some(v), most, place)),
        _ => Ok(()),
    }
}

/// Lists of steps, of which each is looked at by itself.
const STEPS: [&str; 4] = ["normalizers", "pretokenizers", "decoders", "processors"];

/// Factor by which a step may lengthen a text.
fn grows(step: &Value) -> usize {
    let kind = step.get("type").and_then(Value::as_str);
    let content = step.get("content").and_then(Value::as_str).map_or(0, str::len);
    match (kind, step.get("pattern")) {
        (Some("Replace"), Some(pattern)) => {
            // A regular expression may match as little as a byte.
            let least = pattern.get("String").and_then(Value::as_str).map_or(1, str::len);
            content.div_ceil(least.max(1)).max(1)
        }
        _ => 1,
    }
}

/// The table of SentencePiece: the bytes of a trie, whose length comes first, and the texts that stand in place of others, with a
/// zero behind each.
fn charsmap(text: &str) -> Result<(), String> {
    let bytes = base64(text).ok_or("is not base 64")?;
    let (length, rest) = bytes
        .split_first_chunk::<4>()
        .ok_or_else(|| format!("has {} bytes, and no length of its trie", bytes.len()))?;
    let trie = u32::from_le_bytes(*length) as usize;
    let Some((units, texts)) = rest.split_at_checked(trie / 4 * 4).filter(|_| trie >= 4) else {
        return Err(format!("says that its trie has {trie} bytes, and {} follow", rest.len()));
    };
    let texts = std::str::from_utf8(texts).map_err(|_| "has texts that are not UTF-8")?;
    if let Some(long) = texts.split('\0').map(str::len).find(|n| *n > 4 * MOST_GROWTH) {
        return Err(format!("puts {long} bytes in place of one character"));
    }
    let begins = |unit: u32| unit >> 31 == 0 || texts.is_char_boundary((unit & 0x7fff_ffff) as usize);
    let odd = units.as_chunks().0.iter().any(|u| !begins(u32::from_le_bytes(*u)));
    if odd { Err("points between two characters, or behind its texts".into()) } else { Ok(()) }
}

fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|b| match b {
        b'A'..=b'Z' => Some(b - b'A'),
        b'a'..=b'z' => Some(b - b'a' + 26),
        b'0'..=b'9' => Some(b - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits: Vec<u8> = digits.collect::<Option<_>>()?;
    let of_four = |d: &[u8]| {
        let bits = d.iter().fold(0u32, |all, x| all << 6 | u32::from(*x)) << (6 * (4 - d.len()));
        bits.to_be_bytes()[1..d.len()].to_vec()
    };
    Some(digits.chunks(4).flat_map(of_four).collect())
}

fn checked_model(model: &Value) -> Result<(), String> {
    for key in ["continuing_subword_prefix", "end_of_word_suffix", "unk_token"] {
        short(model.get(key), LONGEST_CONTENT, &format!("model.{key}"))?;
    }
    let Some(prefix) = model.get("continuing_subword_prefix").and_then(Value::as_str) else { return Ok(()) };
    for merge in model.get("merges").and_then(Value::as_array).into_iter().flatten() {
        let second = match merge {
            Value::String(pair) => pair.split_once(' ').map(|p| p.1),
            pair => pair.get(1).and_then(Value::as_str),
        };
        // What goes on a word is taken without the prefix, however it begins.
        if let Some(second) = second.filter(|s| s.get(prefix.len()..).is_none()) {
            return Err(format!(
                "a merge goes on with `{}`, which does not begin with `{prefix}`, the `continuing_subword_prefix`",
                second.escape_debug()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    fn odd(part: &str, value: Value) -> String {
        check(&json!({ part: value, "model": {} })).unwrap_err()
    }

    #[test]
    fn what_the_library_cannot_do_is_said() {
        let charsmap =
            |text: &str| odd("normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": text }));
        assert!(charsmap("").contains("has 0 bytes"), "{}", charsmap(""));
        assert!(charsmap("////////////").contains("says that its trie has 4294967295 bytes, and 5 follow"));
        assert!(charsmap("a b").contains("is not base 64"));
        // A trie of one unit that points behind the texts.
        assert!(charsmap("BAAAAP////8=").contains("points between"), "{}", charsmap("BAAAAP////8="));
        let replace =
            |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
        assert!(odd("normalizer", replace("", "z")).contains("`Replace` with an empty `pattern`"));
        let many = json!({ "type": "Sequence", "normalizers": vec![replace("e", "ee"); 40] });
        assert!(odd("normalizer", many).contains("128 times as long"));
        assert!(odd("decoder", replace("e", &"x".repeat(65))).contains("65 times as long"));
        let long = json!({ "type": "Prepend", "prepend": "x".repeat(10_000_000) });
        assert!(odd("normalizer", long).contains("a text of 10000000 bytes, more than 1024"));
        let model = json!({ "type": "BPE", "continuing_subword_prefix": "é", "vocab": { "a": 0, "e": 1 }, "merges": ["a e"] });
        let of_model = |model: Value| check(&json!({ "model": model })).unwrap_err();
        assert!(of_model(model).contains("a merge goes on with `e`"));
        let long = json!({ "type": "BPE", "continuing_subword_prefix": "x".repeat(10_000_000) });
        assert!(of_model(long).contains("model.continuing_subword_prefix"));
    }

    #[test]
    fn what_tokenizers_have_passes() {
        let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        let steps =
            json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, spaces] });
        // A trie of one unit without a value, and no texts.
        let map = json!({ "type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA=" });
        let model = json!({ "type": "WordPiece", "continuing_subword_prefix": "##", "vocab": {} });
        for normalizer in [steps, map, Value::Null] {
            check(&json!({ "normalizer": normalizer, "model": model })).unwrap();
        }
        assert_eq!(base64("TWVzaA==").unwrap(), b"Mesh");
    }
}
