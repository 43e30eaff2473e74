//! Models and layouts: read, resolved, compiled and formatted.
#![allow(clippy::unwrap_used, reason = "tests")]

use bolero::check;
use meshwright_core::training_step;
use meshwright_diag::render;
use meshwright_fuzz::{Edit, edited, time};
use meshwright_train::{Project, ProjectOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Words that mean something somewhere, and characters that do not fit anywhere.
const WORDS: &[&str] = &[
    "let ",
    "param ",
    "input ",
    "layer ",
    "model ",
    "train ",
    "loss ",
    "state ",
    "dim ",
    "const ",
    "return ",
    "use ",
    "repeat ",
    "sum[",
    "mean[",
    "where(",
    "cast(",
    "shift[",
    "softmax[",
    "conv[",
    "lookup",
    "random_normal[",
    "dropout(",
    " as ",
    " in ",
    " when free",
    "params: ",
    " -> ",
    "->",
    "=",
    "==",
    "**",
    "//",
    "/*",
    "*/",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ",",
    ";",
    ":",
    "\"",
    "@",
    "\n",
    "\r",
    "\t",
    "0",
    "1",
    "-1",
    "1e400",
    "4294967296",
    "99999999999999999999",
    "0.5",
    "batch",
    "hidden",
    "size(",
    "mesh ",
    "*",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{1b}[31m",
    "ß",
    "𝕏",
    "\0",
    "minimize ",
    "optimizer ",
    "adam(lr = ",
    "ema ",
    "freeze ",
    "group ",
];

/// The most that one text may take, on a machine that does other things too.
const MOST: Duration = Duration::from_secs(30);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(below: &str, ending: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(below)]);
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found.iter().map(|p| std::fs::read_to_string(p).unwrap()).collect()
}

/// The blocks of the pages of cases that are in a language.
fn blocks(language: &str) -> Vec<String> {
    let pages = files("tests/cases", "md");
    let fence = format!("```{language}");
    let of = |page: &String| -> Vec<String> {
        let starts = page.split(&fence).skip(1);
        starts.filter_map(|s| Some(s.split_once('\n')?.1.split("```").next()?.to_string())).collect()
    };
    pages.iter().flat_map(of).collect()
}

fn bytes(texts: Vec<String>) -> Vec<Vec<u8>> {
    texts.into_iter().map(String::into_bytes).collect()
}

/// Does all that `check`, `explain` and `fmt` do with texts.
fn examine(model: String, layout: String) {
    let begin = Instant::now();
    let mut options = ProjectOptions {
        model: "fuzz.mw".into(),
        layout: Some("fuzz.layout".into()),
        verbose: true,
        ..ProjectOptions::default()
    };
    // What is formatted is formatted the same again, and means the same: other tests say so of valid texts.
    let file = meshwright_diag::FileId(0);
    let _formatted = meshwright_syntax::format_model(file, &model);
    let _formatted = meshwright_syntax::format_layout(file, &layout);
    options.texts.insert("fuzz.mw".into(), model);
    options.texts.insert("fuzz.layout".into(), layout);
    let loaded = Project::load(&options);
    let mut found = loaded.diagnostics;
    if let Some(project) = loaded.project {
        let step = training_step(&project.program).or_else(|| project.evaluation().0.map(|e| e.step));
        if let Some(step) = step {
            found.extend(project.compile(&step, &loaded.sources).1);
        }
    }
    for d in &found {
        let _shown = render::full(d, &loaded.sources, false);
    }
    assert!(begin.elapsed() < MOST, "it took {:?}", begin.elapsed());
}

#[test]
fn models() {
    let seeds = bytes([files("models", "mw"), blocks("mw")].concat());
    assert!(seeds.len() > 100, "{}", seeds.len());
    let words: Vec<&[u8]> = WORDS.iter().map(|w| w.as_bytes()).collect();
    check!().with_type::<(u16, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(seed, edits)| {
            let seed = &seeds[usize::from(*seed) % seeds.len()];
            let text = edited(seed, edits, &words, &seeds);
            examine(String::from_utf8_lossy(&text).into_owned(), "batch -> r".into());
        },
    );
}

#[test]
fn layouts() {
    let models = files("models", "mw");
    let seeds = bytes([files("layouts", "layout"), blocks("layout")].concat());
    assert!(seeds.len() > 10, "{}", seeds.len());
    let words: Vec<&[u8]> = WORDS.iter().map(|w| w.as_bytes()).collect();
    check!().with_type::<(u16, u8, Vec<Edit>)>().with_test_time(time()).with_iterations(usize::MAX).for_each(
        |(seed, model, edits)| {
            let seed = &seeds[usize::from(*seed) % seeds.len()];
            let text = edited(seed, edits, &words, &seeds);
            let model = models[usize::from(*model) % models.len()].clone();
            examine(model, String::from_utf8_lossy(&text).into_owned());
        },
    );
}
