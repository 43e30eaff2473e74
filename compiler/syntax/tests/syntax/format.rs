//! The formatter: what it makes of texts, and that it changes nothing that a text says.

use std::path::Path;

use meshwright_diag::FileId;
use meshwright_syntax::{format_layout, format_model, parse_layout, parse_model};

use crate::support::{MODELS, layouts};
use crate::tokens::{Piece, Random, pieces};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Model,
    Layout,
}

impl Language {
    fn format(self, text: &str) -> Result<String, String> {
        let (out, found) = match self {
            Language::Model => format_model(FileId(0), text),
            Language::Layout => format_layout(FileId(0), text),
        };
        assert_eq!(out.is_some(), found.is_empty(), "{text}");
        out.ok_or_else(|| format!("{found:?}"))
    }

    /// The tree without its places; `None` where the text has errors.
    fn tree(self, text: &str) -> Option<String> {
        let tree = match self {
            Language::Model => format!("{:?}", parse_model(FileId(0), text).0?),
            Language::Layout => format!("{:?}", parse_layout(FileId(0), text).0?),
        };
        let mut out = String::new();
        for (i, part) in tree.split("Span { ").enumerate() {
            out.push_str(if i == 0 { part } else { &part[part.find('}').unwrap()..] });
        }
        Some(out)
    }
}

/// The comments without the blanks around their words.
fn comments(text: &str) -> Vec<String> {
    let found = pieces(text).into_iter().filter_map(|p| match p {
        Piece::Comment(c) => Some(c.split_whitespace().collect::<String>()),
        _ => None,
    });
    found.collect()
}

/// Formats `text` and checks all that holds for every text.
fn checked(language: Language, text: &str) -> String {
    let out = language.format(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(language.tree(text), language.tree(&out), "the tree changed\n{text}\n-----\n{out}");
    assert_eq!(comments(text), comments(&out), "{text}\n-----\n{out}");
    assert_eq!(language.format(&out).as_ref(), Ok(&out), "not idempotent");
    assert!(
        out.is_empty() || out.ends_with('\n') && !out.ends_with("\n\n") && !out.starts_with('\n'),
        "{out}"
    );
    assert!(!out.contains("\n\n\n") && !out.contains('\r'), "{out}");
    for line in out.lines() {
        assert_eq!(line.trim_end(), line, "{out}");
        let whole = line.contains("((((") || line.contains("//") || language == Language::Layout;
        assert!(line.len() <= 100 || whole, "too long: {line}");
    }
    out
}

/// Every model and layout in the tree: shipped, in the cases and in the documents.
fn corpus() -> Vec<(Language, String)> {
    let mut all: Vec<_> = MODELS.iter().map(|(_, t)| (Language::Model, (*t).to_string())).collect();
    all.extend(layouts().into_iter().map(|(_, t)| (Language::Layout, t)));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<_> = ["tests/cases", "docs", "layouts"].iter().map(|f| root.join(f)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    for file in files {
        let text = || std::fs::read_to_string(&file).unwrap();
        match file.extension().and_then(|e| e.to_str()) {
            Some("layout") => all.push((Language::Layout, text())),
            Some("md") => {
                for (fence, language) in [("\n```mw", Language::Model), ("\n```layout", Language::Layout)] {
                    for block in text().split(fence).skip(1) {
                        let block = block.split_once('\n').unwrap().1;
                        all.push((language, block.split("```").next().unwrap().to_string()));
                    }
                }
            }
            _ => {}
        }
    }
    all.retain(|(language, text)| language.tree(text).is_some());
    assert!(all.len() > 100, "{}", all.len());
    all
}

#[test]
fn trees_and_comments_stay() {
    for (language, text) in corpus() {
        checked(language, &text);
    }
}

/// The pieces with other blanks between them. `comments`: comments and empty lines may come in, too.
fn edited(language: Language, text: &str, random: &mut Random, comments: bool) -> String {
    let pieces = pieces(text);
    let mut out = String::new();
    let blank = |random: &mut Random| [" ", "  ", "\t", " \t "][random.below(4)];
    let end = |random: &mut Random| ["\n", "\r\n", " \n", "\n\t"][random.below(4)];
    for (i, piece) in pieces.iter().enumerate() {
        let Piece::Gap { glued, needed, lines, trailing } = *piece else {
            let (Piece::Token(text) | Piece::Comment(text)) = piece else { continue };
            out.push_str(text);
            continue;
        };
        if glued {
            continue;
        }
        let own = matches!(pieces.get(i + 1), Some(Piece::Comment(_)));
        let ends_comment = matches!(i.checked_sub(1).map(|j| &pieces[j]), Some(Piece::Comment(_)));
        if language == Language::Layout && lines == 0 && !trailing {
            out.push_str(if needed { blank(random) } else { ["", " ", "\t"][random.below(3)] });
        } else if trailing {
            // Two blanks never join a word and a comment to a division.
            out.push_str(blank(random));
        } else if ends_comment || lines > 0 && language == Language::Layout || lines > 1 || own {
            let add = comments && random.below(6) == 0;
            if add && !ends_comment {
                out.push_str([" // behind", "\t//behind the line  "][random.below(2)]);
            }
            out.push_str(end(random));
            for _ in 1..lines {
                out.push_str(end(random));
            }
            if add {
                out.push_str(
                    [" // a line of its own\n", "//!", "\t// two\n\n   // lines\r\n"][random.below(3)],
                );
                out.push('\n');
            }
        } else if comments && random.below(12) == 0 {
            out.push_str([" // note", "\n// note", "  //a note", "\n\n// two\n// notes"][random.below(4)]);
            out.push_str(end(random));
        } else {
            let choice = if needed { 1 + random.below(2) } else { random.below(3) };
            out.push_str(["", blank(random), end(random)][choice]);
        }
    }
    out
}

#[test]
fn blanks_do_not_matter() {
    let mut random = Random(7);
    for (language, text) in corpus() {
        let expected = checked(language, &text);
        for _ in 0..3 {
            let edit = edited(language, &text, &mut random, false);
            assert_eq!(
                language.tree(&edit),
                language.tree(&text),
                "the test's edit changed the tree\n{edit}"
            );
            assert_eq!(checked(language, &edit), expected, "{edit}");
        }
    }
}

#[test]
fn comments_may_stand_anywhere() {
    let mut random = Random(11);
    let (mut read, mut all) = (0, 0);
    for (language, text) in corpus() {
        for _ in 0..6 {
            let edit = edited(language, &text, &mut random, true);
            all += 1;
            if language.tree(&edit).is_some() {
                read += 1;
                checked(language, &edit);
            }
        }
    }
    // The rest are comments that end a line which must not end there.
    assert!(read * 10 > all * 9, "{read} of {all}");
}

#[test]
fn errors_are_the_parsers() {
    let (out, found) = format_model(FileId(0), "dim a = \n");
    assert_eq!((out, found), (None, parse_model(FileId(0), "dim a = \n").1));
    let (out, found) = format_layout(FileId(0), "batch => r\n");
    assert_eq!((out, found), (None, parse_layout(FileId(0), "batch => r\n").1));
    // Blanks of the style may take a file beyond the limit.
    let long = format!("dim a = 1{}", "+1".repeat(400_000));
    assert!(parse_model(FileId(0), &long).0.is_none());
    let long = format!("dim a=1{}", ",a=1".repeat(240_000));
    let (out, found) = format_model(FileId(0), &long);
    assert!(out.is_none() && found[0].code.id == "E0108", "{:?}", found[0].code);
}

#[test]
fn one_style() {
    for case in include_str!("programs/format.md").split("\n## ").skip(1) {
        let mut blocks = case.split("```").skip(1).step_by(2).map(|b| b.split_once('\n').unwrap());
        let ((kind, before), (_, after)) = (blocks.next().unwrap(), blocks.next().unwrap());
        let language = if kind == "mw" { Language::Model } else { Language::Layout };
        assert_eq!(checked(language, before), after, "{case}");
    }
}

#[test]
fn the_example_of_the_documents_is_in_style() {
    let page = include_str!("../../../../docs/formatting.md");
    let example = page.split("```mw\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(checked(Language::Model, example), example);
}

#[test]
fn empty_texts() {
    for (text, expected) in [
        ("", ""),
        (" \r\n\n\t", ""),
        ("\u{feff}// a", "// a\n"),
        ("\n\n//a\r\n\r\n\r\n//! b  ", "// a\n\n//! b\n"),
    ] {
        assert_eq!(checked(Language::Model, text), expected);
        assert_eq!(checked(Language::Layout, text), expected);
    }
}

#[test]
fn deep_and_long_texts_take_no_long() {
    let start = std::time::Instant::now();
    let nested = format!("dim a = {}1{}", "(".repeat(120), ")".repeat(120));
    checked(Language::Model, &nested);
    let calls = format!("model m {{ output y = {}x{} }}", "f(aaaaaaaaaaaa, ".repeat(120), ")".repeat(120));
    assert!(Language::Model.format(&calls).is_ok());
    let sum = format!("dim a = 1{}", " + 1".repeat(500));
    checked(Language::Model, &sum);
    let rules = "params a.*: batch, seq -> x, y // rule\n".repeat(4_000);
    assert!(Language::Layout.format(&rules).is_ok());
    let lets = format!("model m {{\n{} }}", "let x = f(a, b, c) + d // note\n".repeat(4_000));
    assert!(Language::Model.format(&lets).is_ok());
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
