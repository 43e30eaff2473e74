//! Long documents come in parts.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::document_split::pieces;
use super::documents::{DocumentRule, TextFiles};
use meshwright_files::Checked;

/// Texts whose lines and documents are longer than what is read at a time: parts are those that the whole would be cut into.
#[test]
fn long_documents_come_in_the_parts_that_the_whole_is_cut_into() {
    let mib = 1 << 20;
    let quarter = 1 << 18;
    let letters = |n: usize| "abcdefg".chars().cycle().take(n).collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let files = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        TextFiles { paths: vec![path], rule: DocumentRule::Files, field: "text".into(), second: None }
    };
    let texts = [
        // Without a blank, and with one here and there.
        letters(3 * mib),
        "word ".repeat(mib),
        "é".repeat(2 * mib) + " ü",
        // Characters and ends of lines across what is read at a time.
        letters(quarter - 1) + "\r\n" + &letters(quarter - 1) + "\r" + &letters(9) + "🙂\r\n",
        letters(quarter - 2) + "🙂" + &letters(2 * quarter - 3) + "\r",
        format!("line\n{}", letters(100)).repeat(30_000),
        // Blank lines, those that only begin as such, and documents of blanks alone.
        " ".repeat(3 * quarter) + "\n\n" + &" ".repeat(3 * quarter) + "a\n\n" + &" ".repeat(2 * mib),
        "a\n".to_string() + &" ".repeat(2 * mib) + "b\n\t\n" + &"c \n".repeat(mib),
        "\u{feff}\n\n".to_string() + &letters(mib) + "\n" + &letters(mib) + "\n\n\nd",
    ];
    for (i, text) in texts.iter().enumerate() {
        let lines: Vec<&str> = text.trim_start_matches('\u{feff}').split('\n').collect();
        let lines: Vec<&str> = match lines.split_last() {
            Some((&"", lines)) => lines.to_vec(),
            _ => lines,
        };
        let lines: Vec<&str> = lines.iter().map(|l| l.strip_suffix('\r').unwrap_or(l)).collect();
        let plain = files("a.txt", text);
        let json = files(
            "a.jsonl",
            &format!(
                "{}
",
                serde_json::json!({ "text": text })
            ),
        );
        for rule in [DocumentRule::BlankLines, DocumentRule::Lines, DocumentRule::Files] {
            let whole: Vec<String> = match rule {
                DocumentRule::BlankLines => {
                    lines.split(|l| l.trim().is_empty()).map(|some| some.join("\n")).collect()
                }
                DocumentRule::Lines => lines.iter().map(ToString::to_string).collect(),
                DocumentRule::Files => vec![lines.join("\n")],
            };
            let whole: Vec<String> = whole.into_iter().filter(|d| !d.trim().is_empty()).collect();
            let of_rule = TextFiles { rule, ..plain.clone() };
            let mut found: Vec<Vec<String>> = vec![Vec::new()];
            for part in of_rule.parts() {
                let part = part.unwrap();
                found.last_mut().unwrap().push(part.as_ref().to_string());
                if part.ends {
                    found.push(Vec::new());
                }
            }
            assert_eq!(found.pop(), Some(Vec::new()));
            assert_eq!(found.len(), whole.len(), "text {i}, {rule:?}");
            for (parts, document) in found.iter().zip(&whole) {
                let cut = |d: &str| {
                    pieces(d).into_iter().filter(|p| !p.is_empty()).map(String::from).collect::<Vec<_>>()
                };
                let parts: Vec<String> = parts.iter().flat_map(|p| cut(p)).collect();
                assert!(parts == cut(document), "text {i}, {rule:?}");
            }
            let documents = of_rule.documents().collect::<Checked<Vec<_>>>().unwrap();
            assert!(documents == whole, "text {i}, {rule:?}");
        }
        let objects = json.documents().collect::<Checked<Vec<_>>>().unwrap();
        assert!(objects == [text.as_str()], "text {i}");
    }
}
