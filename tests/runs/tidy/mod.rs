//! What is true of the repository itself: limits of the code, words, links, commands that the documentation names.

mod comments;
mod contributing;
mod docs;
mod folders;
mod limits;
mod rust;
mod vocabulary;

use crate::support::root;
use std::path::{Path, PathBuf};

/// The files that belong to the project: all but builds, runs and what version control keeps.
fn files(extension: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, extension: &str, out: &mut Vec<PathBuf>) {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", "runs", ".git", ".cargo", "node_modules"].contains(&name.as_str())
                    || path.ends_with("tests/runs")
                    || path.ends_with("runtime/runs")
                {
                    walk(&path, extension, out);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&root(), extension, &mut out);
    assert!(!out.is_empty());
    out
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Its path in the repository.
fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

pub(crate) fn none(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Fenced blocks: what follows the fence, and the text.
pub(crate) fn blocks(text: &str) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        if let Some(info) = line.strip_prefix("```") {
            open = !open;
            if open {
                out.push((info.trim().into(), String::new()));
            }
        } else if let (true, Some(last)) = (open, out.last_mut()) {
            last.1 += line;
            last.1.push('\n');
        }
    }
    out
}
