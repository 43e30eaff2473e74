//! `CONTRIBUTING.md` says which places a new step, collective, optimizer … touches. An existing one stands as the example:
//! the places that name it are looked up in the tree and must be exactly the listed ones. `UPDATE=1` rewrites the lists.

use super::rust::{attributes, is_test, literals, parsed};
use super::{none, read, short};
use crate::support::root;
use meshwright_sorted::{SortedMap, SortedSet};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::path::{Path, PathBuf};
use syn::Item;

/// A kind of thing that one may add.
struct Addition {
    /// Its heading.
    heading: &'static str,
    /// Names that only the example has, in code and in pages.
    words: &'static [&'static str],
    /// Folders and files that only use such a thing.
    users: &'static [&'static str],
    /// The most places that it may take.
    most: usize,
}

const ADDITIONS: &[Addition] = &[
    Addition {
        heading: "An element-wise op",
        words: &["softplus"],
        // An example of losses uses it.
        users: &["docs/training.md"],
        most: 4,
    },
    Addition {
        heading: "A scalar function",
        words: &["Expm1", "expm1"],
        // The ops made of it; that of its own name is one more row "An element-wise op", with its line in the language.
        users: &["compiler/ops/src/ops", "docs/language.md"],
        most: 3,
    },
    Addition {
        heading: "A primitive step",
        words: &["CumSum", "CumSumKernel"],
        users: &["compiler/ops/src/ops/cumsum.rs"],
        most: 6,
    },
    Addition {
        heading: "A kernel for GPUs",
        words: &[
            "Scatter",
            "ScatterCall",
            "ScatterWay",
            "scatter_each",
            "scatter_few_rows",
            "scatter_ordered",
        ],
        users: &[],
        most: 17,
    },
    Addition {
        heading: "A fused kernel for GPUs",
        words: &["RowCall", "RowGroupDims", "row_call", "row_groups"],
        users: &[],
        most: 17,
    },
    Addition {
        heading: "A backend",
        words: &["meshwright_cuda", "Cuda"],
        // The backend itself, and the libraries that it opens.
        users: &["runtime/cuda", "runtime/gpu"],
        most: 24,
    },
    Addition { heading: "An optimizer", words: &["lion", "LION", "Lion"], users: &[], most: 4 },
    Addition { heading: "A collective", words: &["ReduceScatter", "reduce_scatter"], users: &[], most: 13 },
    Addition {
        heading: "A data reader",
        words: &["npy"],
        // A zip file of them, what writes them, and tests.
        users: &[
            "compiler/diag",
            "runtime/cli/src/args/predict.rs",
            "runtime/train/src/arrays.rs",
            "runtime/data/src/tests/label_tests.rs",
            "runtime/data/src/readers/npz.rs",
            "runtime/data/src/tests/set_tests.rs",
            "runtime/data/src/tests/test_case.rs",
        ],
        most: 6,
    },
    Addition { heading: "A pass", words: &["cse"], users: &[], most: 6 },
    Addition {
        heading: "A pass for devices",
        words: &["AttentionBits", "attention_bits"],
        users: &[],
        most: 24,
    },
    Addition { heading: "An error code", words: &["E0107"], users: &["compiler/syntax"], most: 3 },
    Addition { heading: "A model", words: &["unet"], users: &["layouts", "docs"], most: 3 },
    Addition { heading: "A layout", words: &["zero2"], users: &["docs"], most: 4 },
];

/// Where places are looked for: the code without its tests, the mutants, what ships, and the pages that list such things.
const FOLDERS: [&str; 5] = ["compiler", "runtime", "models", "layouts", "tests/laws/mutants"];
const PAGES: [&str; 3] = ["docs/how-a-program-becomes-a-plan.md", "docs/language.md", "docs/training.md"];

#[test]
fn the_places_of_an_addition_are_those_that_its_example_has() {
    let path = root().join("CONTRIBUTING.md");
    let mut page = read(&path);
    let mut problems = Vec::new();
    let files = searched();
    for a in ADDITIONS {
        let found = places(a, &files);
        let count: usize = found.values().map(SortedSet::len).sum();
        if count > a.most {
            problems.push(format!("{}: {count} places, more than {}", a.heading, a.most));
        }
        let listed: String = found.iter().map(|(file, at)| line(file, at)).collect();
        let row = format!("| [{}](#{}) | {count} |", a.heading, a.heading.to_lowercase().replace(' ', "-"));
        match replaced(&page, a.heading, &listed, &row) {
            None => problems.push(format!(
                "CONTRIBUTING.md needs a heading \"{}\" with a block ```places, and a row of the table",
                a.heading
            )),
            Some(new) if new == page => {}
            Some(new) if std::env::var_os("UPDATE").is_some_and(|v| v == "1") => page = new,
            Some(_) => problems.push(format!(
                "{}: the tree has, for {:?} (UPDATE=1 writes it):\n{row}\n{listed}",
                a.heading, a.words
            )),
        }
    }
    if page != read(&path) {
        std::fs::write(&path, &page).unwrap();
    }
    none(problems);
}

#[test]
fn its_paths_exist() {
    let page = read(&root().join("CONTRIBUTING.md"));
    let spans = page.lines().filter(|l| !l.starts_with("```")).flat_map(|l| l.split('`').skip(1).step_by(2));
    let paths: Vec<&str> = spans
        .filter(|s| s.contains('/') && !s.contains(|c: char| c.is_whitespace() || "<>*$".contains(c)))
        .collect();
    assert!(paths.len() > 20, "{paths:?}");
    let missing = paths.iter().filter(|p| !root().join(p).exists());
    none(missing.map(|p| format!("CONTRIBUTING.md: no `{p}`")).collect());
}

fn line(file: &str, at: &SortedSet<String>) -> String {
    let at: Vec<&str> = at.iter().map(String::as_str).collect();
    format!("{file}: {}\n", at.join(", "))
}

/// The page with these lines in the block ```` ```places ```` below a heading, and this row of the table.
fn replaced(page: &str, heading: &str, listed: &str, row: &str) -> Option<String> {
    let section = page.find(&format!("\n## {heading}\n"))?;
    let begin = section + page[section..].find("\n```places\n")? + "\n```places\n".len();
    let end = begin + page[begin..].find("```")?;
    if page[section + 1..begin].matches("\n## ").count() > 0 {
        return None;
    }
    let page = format!("{}{listed}{}", &page[..begin], &page[end..]);
    let start = row.split(") |").next()?.to_string() + ") |";
    let at = page.find(&start)?;
    let end = at + page[at..].find('\n')?;
    Some(format!("{}{row}{}", &page[..at], &page[end..]))
}

/// A file in which places are looked for.
struct Searched {
    name: String,
    stem: String,
    content: Content,
}

enum Content {
    Code(Vec<Item>),
    Text(String),
}

/// All files in which places are looked for.
fn searched() -> Vec<Searched> {
    let mut files: Vec<PathBuf> = PAGES.iter().map(|p| root().join(p)).collect();
    FOLDERS.iter().for_each(|f| walk(&root().join(f), &mut files));
    let read = |path: &PathBuf| Searched {
        name: short(path),
        stem: path.file_stem().unwrap().to_string_lossy().to_lowercase(),
        content: match path.extension().is_some_and(|e| e == "rs") {
            true => Content::Code(parsed(path).items),
            false => Content::Text(std::fs::read_to_string(path).unwrap()),
        },
    };
    files.iter().map(read).collect()
}

/// The places that name the example: for each file the items.
fn places(a: &Addition, files: &[Searched]) -> SortedMap<String, SortedSet<String>> {
    let mut out = SortedMap::new();
    for f in files {
        if a.users.iter().any(|u| f.name == *u || f.name.starts_with(&format!("{u}/"))) {
            continue;
        }
        let found = match &f.content {
            _ if a.words.iter().any(|w| w.to_lowercase() == f.stem) => {
                SortedSet::from(["the whole file".to_string()])
            }
            Content::Code(code) => items(code, a.words, f.name.starts_with("runtime/cli/src/args")),
            Content::Text(text) => {
                has_word(text, a.words).then(|| "a line".to_string()).into_iter().collect()
            }
        };
        if !found.is_empty() {
            out.insert(f.name.clone(), found);
        }
    }
    out
}

fn has_word(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| words.contains(&w))
}

fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let skipped = ["tests", "tests.rs", "examples", "target", "data"];
        if path.is_dir() {
            // Data sets that ship are no code; `runtime/data/src` is.
            let ships = name == "data" && path.starts_with(root().join("models"));
            if !(ships || name != "data" && skipped.contains(&name.as_str())) {
                walk(&path, out);
            }
        } else if !skipped.contains(&name.as_str())
            && ["rs", "md", "mw", "layout", "pest"].iter().any(|e| path.extension().is_some_and(|x| x == *e))
        {
            out.push(path);
        }
    }
}

/// The items that contain one of the words as an identifier or in a text; of an `impl` its methods.
fn items(items: &[Item], words: &[&str], help: bool) -> SortedSet<String> {
    let mut out = SortedSet::new();
    for item in items.iter().filter(|i| !is_test(attributes(i))) {
        let has = |tokens: TokenStream| names(tokens, words);
        match item {
            Item::Mod(m) => match &m.content {
                Some((_, inner)) => out.extend(super::contributing::items(inner, words, help)),
                None if has(m.ident.to_token_stream()) => drop(out.insert("mod".into())),
                None => {}
            },
            Item::Impl(i) => {
                let of = i.self_ty.to_token_stream().to_string();
                let of = of.split([' ', '<']).next().unwrap_or("").to_string();
                if has(i.self_ty.to_token_stream()) {
                    out.insert(format!("impl {of}"));
                    continue;
                }
                for inner in &i.items {
                    if has(inner.to_token_stream()) {
                        let name = match inner {
                            syn::ImplItem::Fn(f) => f.sig.ident.to_string(),
                            syn::ImplItem::Const(c) => c.ident.to_string(),
                            _ => "type".into(),
                        };
                        out.insert(format!("{of}::{name}"));
                    }
                }
            }
            _ => {
                let texts = literals(std::slice::from_ref(item), help);
                let told = texts.iter().any(|(_, text)| has_word(text, words));
                if told || has(item.to_token_stream()) {
                    out.insert(called(item));
                }
            }
        }
    }
    out
}

fn called(item: &Item) -> String {
    match item {
        Item::Const(i) => i.ident.to_string(),
        Item::Enum(i) => i.ident.to_string(),
        Item::Fn(i) => i.sig.ident.to_string(),
        Item::Static(i) => i.ident.to_string(),
        Item::Struct(i) => i.ident.to_string(),
        Item::Trait(i) => i.ident.to_string(),
        Item::Type(i) => i.ident.to_string(),
        Item::Macro(m) => {
            // The macro that is defined, or called.
            let called = m.mac.path.segments.last().map(|s| &s.ident);
            m.ident.as_ref().or(called).map_or_else(String::new, |name| format!("{name}!"))
        }
        Item::Use(_) => "use".into(),
        _ => "item".into(),
    }
}

/// Whether code has one of the words as an identifier.
fn names(tokens: TokenStream, words: &[&str]) -> bool {
    tokens.into_iter().any(|t| match t {
        TokenTree::Ident(i) => words.contains(&i.to_string().as_str()),
        TokenTree::Group(g) => names(g.stream(), words),
        _ => false,
    })
}
