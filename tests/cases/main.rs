//! What the compiler makes of texts: every Markdown file beside this one holds models, layouts and what is expected of
//! them. A heading with expectations is a test. `UPDATE=1 cargo test -p meshwright-tests --test cases` rewrites the
//! expectations in place, for review as a diff.

mod compile;
mod coverage;
mod diff;
mod markdown;
mod reference;

use libtest_mimic::{Arguments, Failed, Trial};
use markdown::{Page, is_expectation};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let args = Arguments::from_args();
    let pages: Vec<Arc<Page>> = files(&folder).iter().map(|f| Arc::new(read(f, &folder))).collect();
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        for page in &pages {
            update(page);
        }
    }
    // What was rewritten is read again, so that an update is checked like anything else.
    let pages: Vec<Arc<Page>> = pages.iter().map(|p| Arc::new(read(&p.path, &folder))).collect();
    let mut trials = Vec::new();
    for page in &pages {
        trials.extend(page_trials(page));
    }
    for page in reference::PAGES {
        let write = std::env::var_os("UPDATE").is_some_and(|v| v == "1");
        trials.push(Trial::test(format!("docs/reference/{}", page.0), move || {
            reference::check(page, write).map_err(Failed::from)
        }));
    }
    let all = pages.clone();
    trials.push(Trial::test("every code of E01 to E03 has a case", move || {
        coverage::codes(&all).map_err(Failed::from)
    }));
    libtest_mimic::run(&args, trials).exit();
}

fn page_trials(page: &Arc<Page>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for problem in &page.problems {
        let text = problem.clone();
        trials.push(Trial::test(format!("{}: form", page.name), move || Err(Failed::from(text))));
    }
    for section in page.sections_with_expectations() {
        let (page, name) = (page.clone(), format!("{}::{}", page.name, page.sections[section].title));
        trials.push(Trial::test(name, move || check(&page, section)));
    }
    trials
}

/// All Markdown files below a folder, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder of cases")
        .map(|e| e.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            out.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            out.push(path);
        }
    }
    out
}

fn read(path: &Path, folder: &Path) -> Page {
    let text = std::fs::read_to_string(path).expect("a readable case");
    let name = path.strip_prefix(folder).unwrap_or(path).with_extension("").display().to_string();
    Page::read(path, &name, &text)
}

/// Compares what a section expects with what comes out.
fn check(page: &Page, section: usize) -> Result<(), Failed> {
    let got = compile::Case::of(page, section)?.run();
    let mut problems = Vec::new();
    for block in page.sections[section].blocks.iter().filter(|b| is_expectation(&b.info)) {
        match got.show(&block.info) {
            Ok(text) if text == block.text => {}
            Ok(text) => problems.push(format!(
                "{}:{}: ```{} differs (- expected, + got; UPDATE=1 rewrites it)\n{}",
                page.path.display(),
                block.line,
                block.info,
                diff::lines(&block.text, &text)
            )),
            Err(e) => {
                problems.push(format!("{}:{}: ```{}: {e}", page.path.display(), block.line, block.info))
            }
        }
    }
    let asked = page.sections[section].blocks.iter().any(|b| b.info.starts_with("diagnostic"));
    if !asked && !got.errors().is_empty() {
        problems.push(format!("errors that no ```diagnostic block expects:\n{}", got.errors()));
    }
    if problems.is_empty() { Ok(()) } else { Err(Failed::from(problems.join("\n"))) }
}

/// Rewrites the expectations of a page where they differ.
fn update(page: &Page) {
    let mut replacements = Vec::new();
    for section in page.sections_with_expectations() {
        let Ok(case) = compile::Case::of(page, section) else { continue };
        let got = case.run();
        for block in page.sections[section].blocks.iter().filter(|b| is_expectation(&b.info)) {
            if let Ok(text) = got.show(&block.info) {
                replacements.push((block.line, text));
            }
        }
    }
    let text = page.with_blocks(&replacements);
    if text != page.text {
        std::fs::write(&page.path, text).expect("a writable case");
    }
}
