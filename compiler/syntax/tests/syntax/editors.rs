//! The grammars for editors know what the grammars of the compiler know.

use meshwright_sorted::SortedSet;

use fancy_regex::Regex;
use serde_json::Value;

use crate::support::{MODELS, layouts};
use crate::tokens::{Piece, pieces};

const MODEL: &str = include_str!("../../../../docs/editors/vscode/syntaxes/meshwright.tmLanguage.json");
const LAYOUT: &str =
    include_str!("../../../../docs/editors/vscode/syntaxes/meshwright-layout.tmLanguage.json");

/// What the shipped texts do not show.
const MORE_MODEL: &str = "use \"a\\tb\\q\"\nconst a = 7//2 % true\nsize s { a = 1 }\nlayer f(x) { state s[a] = 1 return x, -x }
model m { let g = f(a) sharing b let y = conv[rows by kh; in](x) ** 2 != 3 repeat l as i { x = x[a = 0..1; b -> c] } output z = !y and y == x }
train m { minimize l of a.* every 2 from 1 group b { weight_decay 1 } ema 0.5 freeze a.*, b weight_decay 1 except *.b, c.w }";
const MORE_LAYOUT: &str = "params a.*: b -> c; c.d: * -> -\nmicrobatches 8, schedule 1f1b\nrecompute a.*\ngather k\nring k\norder k zigzag a\nreduce grads in bf16\nreduce grads once\nreduce grads by part\nkeep params a.*, b\nb -> c when free";

/// Words in quotes of a pest grammar.
fn keywords(grammar: &str) -> SortedSet<&str> {
    let lines = grammar.lines().map(|l| l.split(" // ").next().unwrap()).filter(|l| !l.starts_with("//"));
    let quoted = lines.flat_map(|l| l.split('"').skip(1).step_by(2));
    quoted.filter(|w| w.len() > 1 && w.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_')).collect()
}

/// Every pattern in the grammar with the key it stands under.
fn patterns(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(s) if ["match", "begin", "end"].contains(&key.as_str()) => {
                        out.push(s.clone())
                    }
                    value => patterns(value, out),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|v| patterns(v, out)),
        _ => {}
    }
}

fn check(grammar: &str, pest: &str, texts: &str) {
    let json: Value = serde_json::from_str(grammar).unwrap();
    let mut all = Vec::new();
    patterns(&json, &mut all);
    assert!(all.len() > 10);
    let words: SortedSet<&str> =
        all.iter().flat_map(|p| p.split(|c: char| !c.is_ascii_alphabetic() && c != '_')).collect();
    let known = keywords(pest);
    assert!(known.len() > 7, "{known:?}");
    for keyword in known {
        // `\b` before a word leaves a `b` in front of it.
        assert!(
            words.contains(keyword) || words.contains(format!("b{keyword}").as_str()),
            "`{keyword}` is missing"
        );
    }
    for pattern in &all {
        let regex = Regex::new(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        let found = texts.lines().any(|l| regex.is_match(l).unwrap());
        assert!(found, "{pattern} matches nowhere");
    }
    // Every `include` leads somewhere.
    for part in grammar.split("\"include\": \"#").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(!json["repository"][name].is_null(), "#{name}");
    }
}

#[test]
fn models_have_every_keyword() {
    let shipped: String = MODELS.iter().map(|(_, t)| *t).collect();
    check(MODEL, include_str!("../../src/model.pest"), &(shipped + MORE_MODEL));
}

#[test]
fn layouts_have_every_keyword() {
    let shipped: String = layouts().into_iter().map(|(_, t)| t).collect();
    check(LAYOUT, include_str!("../../src/layout.pest"), &(shipped + MORE_LAYOUT));
}

#[test]
fn comments_and_divisions_are_told_apart() {
    let json: Value = serde_json::from_str(MODEL).unwrap();
    let rules = json["repository"]["comments"]["patterns"].as_array().unwrap();
    let rules: Vec<_> = rules.iter().map(|r| Regex::new(r["match"].as_str().unwrap()).unwrap()).collect();
    let texts = [
        "let x = (a+b)//c // of d\n",
        "dim a = 7//2\n///doc\n",
        "f(x)//(y) //! z\n",
        "x //4 is\n",
        "i//-2 //- two\n",
        "i//-!-f(a)//--(b)\n",
        "i//- two\n",
        "x//! z\n",
        "x//.5//+2\n",
        "x//...\n",
        "x//--- y\n",
    ];
    for text in texts.into_iter().chain(MODELS.iter().map(|(_, t)| *t)) {
        for line in text.lines() {
            let comment = pieces(line).into_iter().find_map(|p| match p {
                Piece::Comment(c) => Some(c),
                _ => None,
            });
            // As an editor does: the rule that matches first, at each place.
            let (mut at, mut found) = (0, None);
            while let Some((i, m)) = rules
                .iter()
                .enumerate()
                .filter_map(|(i, r)| Some((i, r.find_from_pos(line, at).unwrap()?)))
                .min_by_key(|(i, m)| (m.start(), *i))
            {
                if i > 0 {
                    found = Some(m.as_str().to_string());
                }
                at = m.end();
            }
            assert_eq!(found, comment, "{line}");
        }
    }
}

#[test]
fn the_extension_names_its_files() {
    let text = include_str!("../../../../docs/editors/vscode/package.json");
    let json: Value = serde_json::from_str(text).unwrap();
    let grammars = json["contributes"]["grammars"].as_array().unwrap();
    for (grammar, text) in grammars.iter().zip([MODEL, LAYOUT]) {
        let path = grammar["path"].as_str().unwrap();
        let own: Value = serde_json::from_str(text).unwrap();
        assert_eq!(grammar["scopeName"], own["scopeName"]);
        let at =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/editors/vscode").join(path);
        assert_eq!(std::fs::read_to_string(at).unwrap(), text);
    }
    let text = include_str!("../../../../docs/editors/vscode/language-configuration.json");
    serde_json::from_str::<Value>(text).unwrap();
}
