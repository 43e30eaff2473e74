//! Pages whose commands are run, with the output that they show. Of their blocks,
//!
//! - `LANGUAGE FILE` is a file, which is written;
//! - `sh` is a script, which must succeed and say nothing;
//! - `console` holds commands after `$ ` (`> ` continues one) and below each what it says, on both streams. `…` on a line of
//!   its own stands for any lines, within a line for any text.
//!
//! A page runs in a folder of its own, from its first block to its last.

use crate::support::root;
use crate::tidy::{blocks, none, read};
use std::path::Path;
use std::process::Command;

/// A test for each page, so that several run at once; with the number of commands that it has at least.
macro_rules! pages {
    ($($name:ident: $page:literal, $least:literal;)*) => {
        $(#[test]
        fn $name() {
            shows_what_comes_out($page, $least);
        })*
    };
}

pages! {
    tutorial: "docs/tutorial.md", 10;
    readme: "README.md", 1;
    concepts: "docs/concepts.md", 2;
    tour: "docs/tour.md", 3;
    choosing_a_layout: "docs/choosing-a-layout.md", 9;
    layouts: "docs/layouts.md", 1;
    gpus: "docs/gpus.md", 1;
    how_a_device_runs_it: "docs/how-a-device-runs-it.md", 3;
    parallelism_readme: "docs/parallelism/README.md", 2;
    parallelism_data: "docs/parallelism/data.md", 2;
    parallelism_tensor: "docs/parallelism/tensor.md", 2;
    parallelism_sequence: "docs/parallelism/sequence.md", 3;
    parallelism_zero: "docs/parallelism/zero.md", 2;
    parallelism_hybrid: "docs/parallelism/hybrid.md", 2;
    parallelism_context: "docs/parallelism/context.md", 2;
    parallelism_long_sequences: "docs/parallelism/long_sequences.md", 4;
    parallelism_pipeline: "docs/parallelism/pipeline.md", 1;
    parallelism_experts: "docs/parallelism/experts.md", 2;
    models: "docs/models.md", 1;
    data: "docs/data.md", 3;
    fine_tuning: "docs/fine-tuning.md", 9;
    predict: "docs/predict.md", 4;
    generate: "docs/generate.md", 4;
    expressions: "docs/expressions.md", 9;
    hugging_face: "docs/hugging-face.md", 6;
    gpt_from_nothing: "docs/gpt-from-nothing.md", 7;
    sweeps: "docs/sweeps.md", 4;
    reports: "docs/reports.md", 4;
    metrics: "docs/metrics.md", 2;
    runs: "docs/runs.md", 10;
}

/// Pages for which the data that ships lies where it does in the repository.
const WITH_DATA: &[&str] = &["docs/gpt-from-nothing.md", "docs/metrics.md"];

fn shows_what_comes_out(page: &str, least: usize) {
    let mut problems = Vec::new();
    let dir = tempfile::tempdir().unwrap();
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meshwright-under-test"), bin.path().join("meshwright"))
        .unwrap();
    if WITH_DATA.contains(&page) {
        std::os::unix::fs::symlink(root().join("models"), dir.path().join("models")).unwrap();
    }
    let mut commands = 0;
    for (info, text) in blocks(&read(&root().join(page))) {
        let words: Vec<&str> = info.split_whitespace().collect();
        match words.as_slice() {
            ["sh"] => {
                let said = shell(&text, dir.path(), bin.path());
                if said != (Some(0), String::new()) {
                    problems.push(format!("{said:?} of\n{text}"));
                }
            }
            ["console"] => {
                for (command, expected) in console(&text) {
                    commands += 1;
                    let (_, got) = shell(&command, dir.path(), bin.path());
                    let got: Vec<&str> = got.lines().map(str::trim_end).collect();
                    let lines: Vec<&str> = expected.lines().map(str::trim_end).collect();
                    if !matches(&lines, &got) {
                        problems
                            .push(format!("`{command}` shows\n{}\nand the page\n{expected}", got.join("\n")));
                    }
                }
            }
            [_, file] => {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            _ => {}
        }
    }
    assert!(commands >= least, "{page}: {commands} commands");
    none(problems);
}

/// Runs a script; both streams come in one.
fn shell(script: &str, folder: &Path, bin: &Path) -> (Option<i32>, String) {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut c = Command::new("sh");
    c.args(["-ec", &format!("exec 2>&1\n{script}")]).current_dir(folder);
    c.env("PATH", path).env("NO_COLOR", "1").env_remove("MESHWRIGHT_DATA");
    let out = c.output().unwrap();
    (out.status.code(), String::from_utf8(out.stdout).unwrap())
}

/// The commands of a block, each with what it shows.
fn console(text: &str) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            out.push((command.into(), String::new()));
        } else if let (Some(more), Some(last)) = (line.strip_prefix("> "), out.last_mut()) {
            last.0 += &format!("\n{more}");
        } else if let Some(last) = out.last_mut() {
            last.1 += &format!("{line}\n");
        }
    }
    // A blank line before the next command belongs to neither.
    out.into_iter().map(|(c, shown)| (c, shown.trim_end().to_string())).collect()
}

/// Whether lines are as they are shown.
fn matches(shown: &[&str], got: &[&str]) -> bool {
    let got = match got {
        [rest @ .., ""] if shown.last() != Some(&"") => rest,
        all => all,
    };
    match shown.split_first() {
        None => got.is_empty(),
        Some((line, rest)) if line.trim() == "…" => (0..=got.len()).any(|n| matches(rest, &got[n..])),
        Some((line, rest)) => {
            got.split_first().is_some_and(|(g, left)| alike(line, g) && matches(rest, left))
        }
    }
}

/// Whether a line is as it is shown; the widths of columns do not count.
fn alike(shown: &str, got: &str) -> bool {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, got) = (&*words(shown), &*words(got));
    let parts: Vec<&str> = shown.split('…').map(str::trim).collect();
    let [first, middle @ .., last] = parts.as_slice() else { return shown == got };
    let Some(mut left) = got.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

#[test]
fn dots_stand_for_any_text() {
    assert!(alike("done in … s, loss …", "done in 0.3 s, loss 1.2") && !alike("a … b", "a 1 c"));
    assert!(!alike("loss 0.3", "loss 0.4") && alike("same", "same"));
    assert!(matches(&["a", "…", "b"], &["a", "x", "y", "b"]) && !matches(&["a", "…", "b"], &["a", "b", "c"]));
    assert!(matches(&["…"], &[]) && !matches(&["a"], &["a", "b"]));
    let two = console("$ one \\\n> more\nshown\n\n$ two\n");
    assert_eq!(two, [("one \\\nmore".into(), "shown".into()), ("two".into(), String::new())]);
}
