//! Finds the files that a run reads: `--data image=FILE,label=FILE`, a folder with `data.toml`, or a folder found where data is
//! kept.

use super::manifest::read_manifest;
use super::{FileRef, InputSource, Source, SplitSource, check_split, malformed};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_files::folder::entries;
use meshwright_files::given_paths::MANIFEST;
use meshwright_files::given_paths::split_at_commas;
use meshwright_files::given_paths::{names_files, unescaped};
use meshwright_plan::InputDecl;
use meshwright_sorted::SortedMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Folders where data is sought, in order: `$MESHWRIGHT_DATA` (`env`), `models/data` below `current`, and beside the
/// binary `exe`.
pub fn roots(env: Option<&OsStr>, current: &Path, exe: Option<&Path>) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = env.filter(|e| !e.is_empty()).map(PathBuf::from).into_iter().collect();
    let beside = exe.and_then(Path::parent);
    let others = [
        Some(current.join("models/data")),
        beside.map(|folder| folder.join("models/data")),
        beside.map(|folder| folder.join("data")),
        beside.and_then(Path::parent).map(|p| p.join("share/meshwright/data")),
    ];
    for folder in others.into_iter().flatten() {
        if !out.contains(&folder) {
            out.push(folder);
        }
    }
    out
}

/// The files that a run reads. `given` is the value of `--data`: `NAME=FILE,…` (also `test.NAME=FILE`), a folder with
/// `data.toml`, or the name of one below a root. Without it, the first root is taken that is or holds such a folder with a
/// file for every input; of several folders the one that has no other files.
///
/// # Errors
///
/// Where nothing fits (with all places tried), several do, or `--data` or `data.toml` is malformed.
pub fn find(given: Option<&str>, roots: &[PathBuf], inputs: &[InputDecl]) -> Checked<Source> {
    let Some(given) = given else { return search(roots, inputs) };
    if names_files(given) {
        return parse_pairs(given);
    }
    let mut tried = Vec::new();
    for folder in std::iter::once(PathBuf::from(given)).chain(roots.iter().map(|r| r.join(given))) {
        if folder.join(MANIFEST).is_file() {
            return read_manifest(&folder);
        }
        tried.push(folder);
    }
    Err(not_found(format!("there is no data at `{given}`"), &tried))
}

fn search(roots: &[PathBuf], inputs: &[InputDecl]) -> Checked<Source> {
    let fits = |s: &Source| {
        s.splits.get("train").is_some_and(|s| inputs.iter().all(|i| s.inputs.contains_key(&i.name)))
    };
    for root in roots {
        let mut folders = vec![root.clone()];
        // Of the places that are tried, many are not there.
        folders.extend(entries(root).unwrap_or_default().into_iter().map(|e| e.path));
        let mut found = Vec::new();
        for folder in folders.iter().filter(|f| f.join(MANIFEST).is_file()) {
            found.push(read_manifest(folder)?);
        }
        found.retain(fits);
        // One that has nothing else is meant for this model.
        if found.len() > 1 && found.iter().filter(|s| is_exact(s, inputs)).count() == 1 {
            found.retain(|s| is_exact(s, inputs));
        }
        match found.len() {
            0 => {}
            1 => return Ok(found.remove(0)),
            n => {
                let names = found.iter().map(|s| format!("`{}`", s.place)).collect::<Vec<_>>().join(", ");
                let message = format!("{n} data sets have a file for every input: {names}");
                return Err(Box::new(
                    Diagnostic::error(codes::E0501, message).help("choose one with `--data FOLDER`"),
                ));
            }
        }
    }
    let names = inputs.iter().map(|i| format!("`{}`", i.name)).collect::<Vec<_>>().join(", ");
    Err(not_found(format!("there is no data for the inputs {names}"), roots))
}

/// Whether the training set has a file for every input and for nothing else.
fn is_exact(source: &Source, inputs: &[InputDecl]) -> bool {
    source.splits.get("train").is_some_and(|s| s.inputs.len() == inputs.len())
}

fn not_found(message: String, tried: &[PathBuf]) -> Box<Diagnostic> {
    let mut d = Diagnostic::error(codes::E0501, message);
    for place in tried {
        d = d.note(format!("tried `{}`", place.display()));
    }
    Box::new(d.help(
        "give `--data FOLDER` (with a `data.toml`) or `--data NAME=FILE,NAME=FILE`, or set `MESHWRIGHT_DATA` to a folder",
    ))
}

fn parse_pairs(given: &str) -> Checked<Source> {
    let mut splits = SortedMap::<String, SplitSource>::new();
    for pair in split_at_commas(given) {
        let Some((name, file)) = pair.split_once('=').map(|(n, f)| (n.trim(), f.trim())) else {
            return Err(Box::new(malformed(format!("`{pair}` in `--data` is not `NAME=FILE`")).help(FORM)));
        };
        let (split, name) = split_and_name(name);
        if name.is_empty() || file.is_empty() {
            return Err(Box::new(
                malformed(format!("`{pair}` in `--data` lacks a name or a file")).help(FORM),
            ));
        }
        check_split(split, "--data")?;
        let file = InputSource::Files(vec![FileRef::parse(&unescaped(file), Path::new(""))]);
        if splits.entry(split.to_string()).or_default().inputs.insert(name.to_string(), file).is_some() {
            return Err(malformed(format!("`{name}` occurs twice in `--data`")));
        }
    }
    Ok(Source { place: "--data".into(), folder: None, exact: true, splits })
}

const FORM: &str =
    "write `--data image=FILE,label=FILE`, and `test.image=FILE,test.label=FILE` for the test set";

/// `test.image` is `image` of the split `test`; without one it is of `train`.
fn split_and_name(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or(("train", name))
}

/// The split that all files are of that `--data` names one by one; `None` where they are of several, or a folder is named.
pub fn only_split(given: &str) -> Option<&str> {
    if !names_files(given) {
        return None;
    }
    let pairs: Vec<&str> = split_at_commas(given);
    let mut splits = pairs.iter().map(|p| Some(split_and_name(p.split_once('=')?.0.trim()).0));
    let first = splits.next()??;
    splits.all(|s| s == Some(first)).then_some(first)
}
