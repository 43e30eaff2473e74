//! Comments name things (`docs/style.md`). An opening with What, Whether, Where or How paraphrases the subject by a clause, and
//! some phrases do the same. Each file of the compiler and the runtime may have a few of either. No file may have wide comments.
//! `comments.txt` lists the files with more; it may only shrink.

use super::{files, none, read, short};
use crate::support::root;
use meshwright_sorted::SortedSet;

/// First words that open a clause in place of a noun.
const OPENINGS: [&str; 4] = ["What", "Whether", "Where", "How"];
/// Phrases that stand for a noun or a verb of the field.
const PHRASES: [&str; 7] = ["beside", "in its place", "is no", "of which", "so many", "those that", "told"];
/// Comments of a file that may open so: this many, or one in ten.
const MOST_OPENINGS: usize = 4;
/// Phrases that a file may have.
const MOST_PHRASES: usize = 2;
/// Columns of a comment line, indentation included. Code has 110 (`rustfmt.toml`), most comments 120.
const WIDEST: usize = 130;

/// The paragraphs of a file's comments on lines of their own, each with its first line, without code spans.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = vec![];
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//").map(|c| c.trim_start_matches(['/', '!']).trim());
        match comment {
            Some("") | None => open = false,
            Some(words) => {
                if !open {
                    out.push((i + 1, String::new()));
                }
                open = true;
                if let Some((_, paragraph)) = out.last_mut() {
                    paragraph.push_str(words);
                    paragraph.push(' ');
                }
            }
        }
    }
    out.iter_mut().for_each(|(_, p)| *p = p.split('`').step_by(2).collect::<Vec<_>>().join("`"));
    out
}

fn opens(paragraph: &str) -> bool {
    let first = paragraph.split(|c: char| !c.is_alphanumeric()).next();
    first.is_some_and(|word| OPENINGS.contains(&word))
}

/// The phrases in a paragraph, as words of their own.
fn phrases(paragraph: &str) -> usize {
    let words: Vec<String> = paragraph
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty())
        .map(str::to_lowercase)
        .collect();
    let text = format!(" {} ", words.join(" "));
    PHRASES.iter().map(|p| text.matches(&format!(" {p} ")).count()).sum()
}

/// Lines of comments that are too wide, in words. Rows of tables cannot be broken.
fn too_wide(text: &str) -> Option<String> {
    let is_wide = |line: &str| {
        let comment =
            line.trim_start().strip_prefix("//").map(|c| c.trim_start_matches(['/', '!']).trim_start());
        comment.is_some_and(|c| !c.starts_with('|')) && line.chars().count() > WIDEST
    };
    let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line)).map(|(i, _)| i + 1);
    let lines: Vec<usize> = wide.collect();
    (!lines.is_empty()).then(|| format!("comments of more than {WIDEST} columns: lines {lines:?}"))
}

/// The excess of a file over the limits, in words.
fn excess(text: &str) -> Option<String> {
    let comments = comments(text);
    let opening: Vec<usize> = comments.iter().filter(|c| opens(&c.1)).map(|c| c.0).collect();
    let found: Vec<usize> = comments.iter().flat_map(|c| vec![c.0; phrases(&c.1)]).collect();
    let most = MOST_OPENINGS.max(comments.len() / 10);
    let mut out = vec![];
    if opening.len() > most {
        out.push(format!(
            "{} of {} comments open with {}, at most {most} may: lines {opening:?}",
            opening.len(),
            comments.len(),
            OPENINGS.join(", ")
        ));
    }
    if found.len() > MOST_PHRASES {
        out.push(format!(
            "{} times one of \"{}\", at most {MOST_PHRASES}: comments at lines {found:?}",
            found.len(),
            PHRASES.join("\", \"")
        ));
    }
    out.extend(too_wide(text));
    (!out.is_empty()).then(|| out.join("; "))
}

#[test]
fn comments_name_things() {
    let list = read(&root().join("tests/runs/tidy/comments.txt"));
    let mut listed: SortedSet<&str> = list.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let mut problems = vec![];
    for path in files("rs") {
        let name = short(&path);
        let text = read(&path);
        let found = match ["compiler/", "runtime/"].iter().any(|f| name.starts_with(f)) {
            true => excess(&text),
            false => too_wide(&text),
        };
        match (found, listed.remove(name.as_str())) {
            (Some(excess), false) => problems.push(format!("{name}: {excess} (docs/style.md)")),
            (None, true) => problems.push(format!("{name} meets the limits: take it off comments.txt")),
            _ => {}
        }
    }
    problems.extend(listed.iter().map(|name| format!("comments.txt: there is no file {name}")));
    none(problems);
}

#[test]
fn wide_comments_are_found() {
    let of = |prefix: &str, columns: usize| format!("{prefix}{}", "w".repeat(columns - prefix.len()));
    for prefix in ["// ", "/// ", "    //! ", "        // "] {
        assert_eq!(too_wide(&of(prefix, WIDEST)), None);
        assert_eq!(excess(&of(prefix, WIDEST + 1)), too_wide(&of(prefix, WIDEST + 1)));
        assert!(too_wide(&of(prefix, WIDEST + 1)).is_some(), "{prefix}");
    }
    let code_or_table = [of("let x = ", WIDEST + 1), of("/// | ", WIDEST + 1)].join("\n");
    assert_eq!(too_wide(&code_or_table), None);
    let second = too_wide(&format!("// A line.\n{}", of("// ", WIDEST + 1))).unwrap();
    assert!(second.ends_with("lines [2]"), "{second}");
}

#[test]
fn openings_and_phrases_are_found() {
    let text = "//! What it is.\n//!\n//! A noun; so\n//! many of `those that`.\nfn f() {} // Where?\n/// However,\n    // How.";
    let found = comments(text);
    let lines: Vec<usize> = found.iter().map(|c| c.0).collect();
    assert_eq!(lines, [1, 3, 6]);
    assert_eq!(found.iter().map(|c| opens(&c.1)).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(found.iter().map(|c| phrases(&c.1)).sum::<usize>(), 1);
    assert!(excess(text).is_none());
    let many = |line: &str, n: usize| format!("{line}\n\n").repeat(n);
    assert!(excess(&many("// Where it is.", MOST_OPENINGS)).is_none());
    assert!(excess(&many("// Where it is.", MOST_OPENINGS + 1)).is_some());
    for phrase in PHRASES {
        let line = format!("/// A thing {phrase} another.");
        assert!(excess(&many(&line, MOST_PHRASES)).is_none(), "{phrase}");
        assert!(excess(&many(&line, MOST_PHRASES + 1)).is_some(), "{phrase}");
    }
    // Words that contain a phrase are others.
    assert!(excess(&many("// Besides, this is not that; it is now known.", MOST_PHRASES + 1)).is_none());
}
