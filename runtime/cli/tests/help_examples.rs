//! Examples in help and in the pages of errors do what they say.

use crate::support::{command, folder, said};
use std::path::Path;

/// Commands with examples that need no data and take little time.
const COMMANDS: [&str; 5] = ["check", "explain", "estimate", "compare", "machines"];

/// The lines of a text that begin with a command of these, without what needs files of the user, devices or a shell.
fn examples(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(|l| l.trim().strip_prefix("meshwright ")).map(shlex::split);
    let own = |w: &String| {
        w == ">" || w == "--measure" || w.starts_with("my.") || w.contains('/') || w.ends_with(".json")
    };
    let all = lines.map(|words| words.expect("quotes are closed"));
    all.filter(|w| COMMANDS.contains(&w[0].as_str()) && !w.iter().any(own)).collect()
}

fn all_succeed(at: &Path, from: &str, text: &str) -> usize {
    let found = examples(text);
    for words in &found {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, _, err) = said(command(&words).current_dir(at).output().unwrap());
        assert_eq!(code, 0, "{from}: {words:?}: {err}");
    }
    found.len()
}

#[test]
fn examples_of_help_succeed() {
    let at = folder("help-examples");
    // Nothing is wrapped.
    let help = |name| said(command(&[name, "--help"]).env("COLUMNS", "1000").output().unwrap()).1;
    let found = COMMANDS.into_iter().map(|name| all_succeed(&at, name, &help(name)));
    assert!(found.sum::<usize>() > 24);
}

#[test]
fn what_the_pages_of_errors_call_right_succeeds() {
    let (at, mut found) = (folder("pages-of-errors"), 0);
    for file in std::fs::read_dir("../../compiler/diag/codes").unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let right = text.split_once("Right:").map_or("", |(_, right)| right);
        found += all_succeed(&at, &path.display().to_string(), right);
    }
    assert!(found > 5, "{found}");
}
