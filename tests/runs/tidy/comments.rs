//! Comments name things (`docs/style.md`). An opening with What, Whether, Where or How paraphrases the subject by a clause, and
//! some phrases do the same. Each file may have a few of either. `comments.txt` lists the files with more; it may only shrink.

use super::{files, none, read, short};
use crate::support::root;
use meshwright_sorted::SortedSet;

/// First words that open a clause in place of a noun.
const OPENINGS: [&str; 4] = ["What", "Whether", "Where", "How"];
/// Phrases that stand for a noun or a verb of the field.
const PHRASES: [&str; 5] = ["in its place", "of which", "so many", "those that", "told"];
/// Comments of a file that may open so: this many, or one in ten.
const MOST_OPENINGS: usize = 4;
/// Phrases that a file may have.
const MOST_PHRASES: usize = 2;

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
    (!out.is_empty()).then(|| out.join("; "))
}

#[test]
fn comments_name_things() {
    let list = read(&root().join("tests/runs/tidy/comments.txt"));
    let mut listed: SortedSet<&str> = list.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let mut problems = vec![];
    for path in files("rs") {
        let name = short(&path);
        if !["compiler/", "runtime/"].iter().any(|f| name.starts_with(f)) {
            continue;
        }
        match (excess(&read(&path)), listed.remove(name.as_str())) {
            (Some(excess), false) => problems.push(format!("{name}: {excess} (docs/style.md)")),
            (None, true) => problems.push(format!("{name} meets the limits: take it off comments.txt")),
            _ => {}
        }
    }
    problems.extend(listed.iter().map(|name| format!("comments.txt: there is no file {name}")));
    none(problems);
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
    assert!(excess(&many("// It was told.", MOST_PHRASES + 1)).is_some());
}
