#![allow(clippy::unwrap_used, reason = "tests")]

use super::{concise, full, full_all, json, printable};
use crate::{Diagnostic, FileId, Sources, Span, codes};

fn span_of(sources: &Sources, file: FileId, part: &str) -> Span {
    let at = sources.text(file).find(part).unwrap();
    Span::new(file, at, at + part.len())
}

fn two_files() -> (Sources, Diagnostic) {
    let mut s = Sources::new();
    let model = s.add("mlp.mw", "dim batch = 100\ndim hidden = 1024\n");
    let layout = s.add("a.layout", "mesh r = 2\nbatch -> r\nhidden -> r\n");
    let end = span_of(&s, layout, "hidden -> r").end as usize;
    let d = Diagnostic::error(codes::E0101, "`batch` and `hidden` are both split over `r`")
        .at(span_of(&s, layout, "hidden -> r"), "second rule")
        .and(span_of(&s, layout, "batch -> r"), "first rule")
        .and(span_of(&s, model, "hidden"), "1024")
        .note("the tensor is `h[batch, hidden]`")
        .help("or give one of them another axis")
        .fix("add `when free` to the second rule", Span::new(layout, end, end), " when free", true);
    (s, d)
}

#[test]
fn full_shows_every_place_note_help_and_fix() {
    let (s, d) = two_files();
    let expected = "\
error[E0101]: `batch` and `hidden` are both split over `r`
 --> a.layout:3:1
  |
2 | batch -> r
  | ---------- first rule
3 | hidden -> r
  | ^^^^^^^^^^^ second rule
  |
 ::: mlp.mw:2:5
  |
2 | dim hidden = 1024
  |     ------ 1024
  |
  = note: the tensor is `h[batch, hidden]`
  = help: or give one of them another axis
help: add `when free` to the second rule
  |
3 | hidden -> r when free
  |             +++++++++
";
    assert_eq!(full(&d, &s, false), expected);
    assert!(full(&d, &s, true).contains("\u{1b}["));
}

#[test]
fn concise_is_one_line() {
    let (s, d) = two_files();
    assert_eq!(concise(&d, &s), "a.layout:3:1: error[E0101]: `batch` and `hidden` are both split over `r`");
    let bare = Diagnostic::warning(codes::E0190, "two\nlines");
    assert_eq!(concise(&bare, &s), "warning[E0190]: two lines");
}

#[test]
fn json_has_everything() {
    let (s, d) = two_files();
    let v: serde_json::Value = serde_json::from_str(&json(&d, &s)).unwrap();
    let expected = serde_json::json!({
        "code": "E0101", "severity": "error",
        "message": "`batch` and `hidden` are both split over `r`",
        "labels": [
            {"file": "a.layout", "line": 3, "column": 1, "end": {"line": 3, "column": 12},
             "text": "second rule", "primary": true},
            {"file": "a.layout", "line": 2, "column": 1, "end": {"line": 2, "column": 11},
             "text": "first rule", "primary": false},
            {"file": "mlp.mw", "line": 2, "column": 5, "end": {"line": 2, "column": 11},
             "text": "1024", "primary": false}],
        "notes": ["the tensor is `h[batch, hidden]`"], "helps": ["or give one of them another axis"],
        "fixes": [{"title": "add `when free` to the second rule", "file": "a.layout", "line": 3, "column": 12,
                   "end": {"line": 3, "column": 12}, "replacement": " when free", "sure": true}]});
    assert_eq!(v, expected);
}

#[test]
fn columns_count_characters() {
    let mut s = Sources::new();
    let f = s.add("é.mw", "\tlet é = x // ü\r\nlet y = 2\r\n");
    let d = Diagnostic::error(codes::E0101, "m").at(span_of(&s, f, "x"), "here");
    assert_eq!(concise(&d, &s), "é.mw:1:10: error[E0101]: m");
    let text = full(&d, &s, false);
    let lines: Vec<&str> = text.lines().collect();
    let source = lines.iter().find(|l| l.contains("let é")).unwrap();
    let caret = lines.iter().find(|l| l.contains('^')).unwrap();
    let column = |line: &str, c: char| line.chars().position(|x| x == c).unwrap();
    assert_eq!(column(source, 'x'), column(caret, '^'), "{text}");
    assert!(!text.contains('\r'));
}

#[test]
fn no_span_panics() {
    let texts = [
        "",
        "\n",
        "x",
        "äöü\tß\r\n\r\n",
        "a\nb",
        "a\n\n\n",
        "\u{feff}x\u{0}\u{1b}[31m日本\n",
        "\r\n\r",
        "\t",
    ];
    for text in texts {
        let mut s = Sources::new();
        let f = s.add("f", text);
        let n = text.len() + 2;
        for start in 0..=n {
            for end in start.saturating_sub(1)..=n {
                let span = Span::new(f, start, end);
                let d = Diagnostic::error(codes::E0101, "m")
                    .at(span, "a")
                    .and(span, "")
                    .and(Span::new(FileId(7), start, end), "unknown file")
                    .fix("insert", span, "new\n", false)
                    .fix("delete", span, "", false)
                    .fix("elsewhere", Span::new(FileId(7), start, end), "x", false);
                assert!(full_all(&[d.clone(), d.clone()], &s, start % 2 == 0).contains("E0101"));
                concise(&d, &s);
                serde_json::from_str::<serde_json::Value>(&json(&d, &s)).unwrap();
            }
        }
    }
}

#[test]
fn every_code_has_a_page_with_a_bad_and_a_good_example() {
    for code in codes::ALL {
        assert!(code.page.starts_with("# ") && !code.title().is_empty(), "{code:?}");
        assert_eq!(codes::find(&code.id.to_lowercase()), Some(*code));
        assert_eq!(code.page.matches("```").count() % 2, 0, "{code:?}: an open example");
    }
    assert!(codes::ALL.windows(2).all(|w| w[0].id < w[1].id), "codes are in order");
}

/// Names of files come from anybody.
#[test]
fn no_part_of_a_message_steers_the_terminal() {
    let name = "no\u{1b}[31mwhere";
    let (mut sources, mut d) =
        (Sources::new(), Diagnostic::error(codes::E0515, format!("cannot read `{name}`")));
    let file = sources.add(name, "x = 1\n");
    d = d.at(Span::new(file, 0, 1), format!("label {name}")).note(format!("tried {name}"));
    d = d.help(format!("give {name}"));
    for text in [full(&d, &sources, false), concise(&d, &sources)] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}

/// A name that turns the direction of text would be shown as another; letters of any script, and characters that join them, stay.
#[test]
fn characters_that_turn_the_direction_are_visible() {
    for c in "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}"
        .chars()
    {
        assert_eq!(printable(&format!("a{c}b")), format!("a\\u{{{:x}}}b", u32::from(c)));
    }
    let plain = "שלום مرحبا ค่ะ a\u{200d}b\u{200c}\tc\r\n";
    assert_eq!(printable(plain), plain);
}
