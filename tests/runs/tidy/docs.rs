//! What is true of the documentation and of the repository's folders: links, commands, examples, lists.

use super::{blocks, files, none, read, short};
use crate::support::{root, run};
use meshwright_core::step::optimizers::{Accepts, OPTIMIZERS};
use meshwright_diag::{FileId, has_errors};
use meshwright_ops::families;
use meshwright_ops::signature::Form;
use meshwright_runs::catalog::LIBRARY;
use meshwright_runs::catalog::{LAYOUTS, MAPS, MODELS};
use meshwright_sorted::SortedSet;
use meshwright_syntax::parse_layout;
use std::path::PathBuf;

/// The folders of the crates, such as `compiler/diag`.
fn crates() -> Vec<String> {
    let manifests = files("toml").into_iter().filter(|p| p.ends_with("Cargo.toml"));
    let mut out: Vec<String> =
        manifests.map(|p| short(p.parent().unwrap())).filter(|p| !p.is_empty()).collect();
    out.sort();
    assert!(out.len() >= 10, "{out:?}");
    out
}

#[test]
fn every_crate_states_its_invariant_and_the_map_shows_it() {
    let map = read(&root().join("docs/ARCHITECTURE.md"));
    let mut problems = Vec::new();
    for name in crates() {
        let lib = root().join(&name).join("src/lib.rs");
        if name != "tests" && !read(&lib).contains("**Invariant") {
            problems.push(format!("{name}/src/lib.rs states no `**Invariant:**`"));
        }
        if !map.contains(&format!("`{name}`")) {
            problems.push(format!("docs/ARCHITECTURE.md does not mention `{name}`"));
        }
    }
    none(problems);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    // Put together here, so that this file does not contain them itself.
    let words = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut problems = Vec::new();
    for extension in ["rs", "md", "toml", "mw", "layout", "pest", "lock", "yml", "sh"] {
        for path in std::panic::catch_unwind(|| files(extension)).unwrap_or_default() {
            for (i, line) in read(&path).lines().enumerate() {
                if let Some(word) = words.iter().find(|w| line.contains(*w)) {
                    problems.push(format!("{}:{}: contains `{word}`", short(&path), i + 1));
                }
            }
        }
    }
    let sources = read(&root().join("Cargo.lock"));
    let other = sources.lines().filter(|l| l.starts_with("source = "));
    let index = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    problems.extend(other.filter(|l| *l != index).map(|l| format!("Cargo.lock: {l}")));
    none(problems);
}

/// What a heading is called in links: as the common renderers have it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_')
        .collect::<String>();
    kept.replace(' ', "-")
}

fn anchors(text: &str) -> Vec<String> {
    text.lines().filter(|l| l.starts_with('#')).map(|l| anchor(l.trim_start_matches('#'))).collect()
}

/// Markdown without its code: blocks, and what stands between backticks.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        } else if !code {
            out.extend(line.split('`').step_by(2));
            out.push('\n');
        }
    }
    out
}

#[test]
fn links_lead_somewhere() {
    let mut problems = Vec::new();
    for path in files("md") {
        let text = prose(&read(&path));
        for (at, _) in text.match_indices("](") {
            let Some(target) = text[at + 2..].split(')').next() else { continue };
            if target.contains("://") || target.starts_with("mailto:") || target.contains('\n') {
                continue;
            }
            let (file, place) = target.split_once('#').map_or((target, None), |(f, p)| (f, Some(p)));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            if !to.exists() {
                problems.push(format!("{}: no `{target}`", short(&path)));
            } else if let Some(place) = place.filter(|_| to.extension().is_some_and(|e| e == "md"))
                && !anchors(&read(&to)).iter().any(|a| a == place)
            {
                problems.push(format!("{}: `{file}` has no heading `#{place}`", short(&path)));
            }
        }
    }
    none(problems);
}

#[test]
fn commands_in_the_documentation_exist() {
    let mut problems = Vec::new();
    let mut seen = SortedSet::new();
    for path in files("md") {
        for line in blocks(&read(&path)).iter().flat_map(|b| b.1.lines()) {
            let line = line.trim_start_matches("$ ").trim();
            let Some(rest) =
                ["cargo run --release -- ", "meshwright "].iter().find_map(|p| line.strip_prefix(p))
            else {
                continue;
            };
            let words: Vec<&str> = rest.split_whitespace().collect();
            let names = |w: &&&str| w.starts_with(|c: char| c.is_ascii_lowercase());
            let mut command: Vec<&str> = words.iter().take(1).filter(names).copied().collect();
            if matches!(
                command.first(),
                Some(&"bench" | &"ckpt" | &"data" | &"export" | &"import" | &"launch" | &"runs")
            ) {
                command.extend(words.get(1));
            }
            command.push("--help");
            let help = run(&command);
            seen.insert(command[0].to_string());
            if help.code != Some(0) {
                problems.push(format!("{}: no command `{}` (`{line}`)", short(&path), command[0]));
                continue;
            }
            for option in words.iter().take_while(|w| **w != "--").filter(|w| w.starts_with("--")) {
                let name = option.split('=').next().unwrap_or(option);
                if !help.out.contains(name) {
                    problems.push(format!("{}: `{}` has no `{name}`", short(&path), command[0]));
                }
            }
        }
    }
    assert!(seen.contains("train") && seen.contains("explain"), "{seen:?}");
    none(problems);
}

#[test]
fn examples_in_the_documentation_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("example.mw");
    let (mut models, mut layouts) = (0, 0);
    for name in [
        "docs/language.md",
        "docs/training.md",
        "docs/layouts.md",
        "docs/coming-from-mesh-tensorflow.md",
        "docs/expressions.md",
        "README.md",
    ] {
        for (info, text) in blocks(&read(&root().join(name))) {
            if info == "mw" {
                std::fs::write(&file, &text).unwrap();
                let said = run(&["check", file.to_str().unwrap()]);
                // What is only read so far says so, with the code of that.
                let fine = said.code == Some(0)
                    || said.err.matches("error[").count() == said.err.matches("error[E0190]").count();
                assert!(fine, "{name}: {}\n{text}", said.err);
                models += 1;
            } else if info == "layout" {
                let (_, found) = parse_layout(FileId(0), &text);
                assert!(!has_errors(&found), "{name}: {found:?}\n{text}");
                layouts += 1;
            }
        }
    }
    assert!(models > 5 && layouts > 2, "{models} models and {layouts} layouts");
}

#[test]
fn the_reference_names_every_op() {
    let reference = read(&root().join("docs/language.md"));
    let spans =
        reference.lines().filter(|l| !l.starts_with("```")).flat_map(|l| l.split('`').skip(1).step_by(2));
    let words: SortedSet<&str> =
        spans.flat_map(|s| s.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
    let written = |f: &&meshwright_ops::Family| f.signature.form == Form::Named;
    let missing = families().filter(written).filter(|f| !words.contains(f.name));
    none(missing.map(|f| format!("docs/language.md does not name `{}`", f.name)).collect());
}

#[test]
fn what_lies_in_the_folders_ships() {
    let stems = |extension: &str, folder: &str| -> SortedSet<String> {
        let here = root().join(folder);
        let all = files(extension).into_iter().filter(|p| p.parent() == Some(&here));
        all.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect()
    };
    let names = |list: &[meshwright_runs::catalog::Shipped]| {
        list.iter().map(|s| s.name.to_string()).collect::<SortedSet<_>>()
    };
    assert_eq!(stems("mw", "models"), names(MODELS));
    assert_eq!(stems("mw", "models/std"), names(LIBRARY));
    assert_eq!(stems("toml", "models/hf"), names(MAPS));
    assert_eq!(stems("layout", "layouts"), names(LAYOUTS));
}

#[test]
fn decisions_are_short() {
    // The list of them has a line for each.
    let is_record = |p: &PathBuf| short(p).starts_with("docs/adr/") && !p.ends_with("README.md");
    let records = files("md").into_iter().filter(is_record);
    let long = records.map(|p| (short(&p), read(&p).lines().count())).filter(|(_, n)| *n > 80);
    none(long.map(|(name, n)| format!("{name}: {n} lines, more than 80")).collect());
}

#[test]
fn every_optimizer_and_its_settings_are_in_the_reference() {
    let reference = read(&root().join("docs/training.md"));
    let mut missing = Vec::new();
    for o in OPTIMIZERS {
        let row = reference.lines().find(|l| l.starts_with(&format!("| `{}` |", o.name)));
        for s in o.settings {
            let default = match s.accepts {
                Accepts::Flag(b) => b.to_string(),
                Accepts::Count(n) => n.to_string(),
                Accepts::Scalar(_, v) | Accepts::ScalarOrOff(_, v) => {
                    v.map_or(String::new(), |v| v.to_string())
                }
            };
            // Numbers may be written otherwise, as 1e-2 or 1.0.
            let says = |text: &str| match (text.split_once(" = "), default.parse::<f64>()) {
                (None, _) => text == s.name && default.is_empty(),
                (Some((name, v)), Ok(d)) => name == s.name && v.parse::<f64>() == Ok(d),
                (Some((name, v)), Err(_)) => name == s.name && v == default,
            };
            if !row.is_some_and(|r| r.split('`').any(says)) {
                missing.push(format!("docs/training.md does not say `{}` of `{}`", s.name, o.name));
            }
        }
        if row.is_none() {
            missing.push(format!("docs/training.md has no row for `{}`", o.name));
        }
    }
    none(missing);
}
