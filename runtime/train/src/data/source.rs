//! Which files a run reads: `--data image=FILE,label=FILE`, a folder with `data.toml`, or a folder found where data is kept.

use crate::Checked;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_plan::InputDecl;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A file, and which tensor of it where it holds several: `FILE` or `FILE.safetensors:TENSOR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The file.
    pub path: PathBuf,
    /// Name of a tensor in it.
    pub tensor: Option<String>,
}

impl FileRef {
    /// Reads `FILE` or `FILE.safetensors:TENSOR`, relative to `folder`.
    fn parse(text: &str, folder: &Path) -> FileRef {
        const END: &str = ".safetensors:";
        match text.find(END) {
            Some(at) => {
                let (path, tensor) = text.split_at(at + END.len() - 1);
                FileRef { path: folder.join(path), tensor: Some(tensor[1..].to_string()) }
            }
            None => FileRef { path: folder.join(text), tensor: None },
        }
    }

    pub(super) fn is_safetensors(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.ends_with(".safetensors") || name.ends_with(".safetensors.gz")
    }
}

impl std::fmt::Display for FileRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.tensor.as_ref().map_or(Ok(()), |t| write!(f, ":{t}"))
    }
}

/// Files by split (`train`, `test`) and input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What the user would call it: a folder or `--data`.
    pub place: String,
    /// Whether every name must be an input of the model. A folder may hold more than a model uses.
    pub exact: bool,
    /// Files by split and input.
    pub splits: BTreeMap<String, BTreeMap<String, FileRef>>,
}

impl Source {
    /// Whether there is a split of that name.
    pub fn has(&self, split: &str) -> bool {
        self.splits.contains_key(split)
    }
}

const SPLITS: [&str; 2] = ["train", "test"];

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
/// file for every input.
///
/// # Errors
///
/// Where nothing fits (with all places tried), several do, or `--data` or `data.toml` is malformed.
pub fn find(given: Option<&str>, roots: &[PathBuf], inputs: &[InputDecl]) -> Checked<Source> {
    let Some(given) = given else { return search(roots, inputs) };
    if given.contains('=') {
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

const MANIFEST: &str = "data.toml";

fn search(roots: &[PathBuf], inputs: &[InputDecl]) -> Checked<Source> {
    let fits = |s: &Source| {
        s.splits.get("train").is_some_and(|files| inputs.iter().all(|i| files.contains_key(&i.name)))
    };
    for root in roots {
        let mut folders = vec![root.clone()];
        if let Ok(entries) = std::fs::read_dir(root) {
            folders.extend(entries.flatten().map(|e| e.path()));
        }
        folders.sort();
        let mut found = Vec::new();
        for folder in folders.iter().filter(|f| f.join(MANIFEST).is_file()) {
            found.push(read_manifest(folder)?);
        }
        found.retain(fits);
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

fn not_found(message: String, tried: &[PathBuf]) -> Box<Diagnostic> {
    let mut d = Diagnostic::error(codes::E0501, message);
    for place in tried {
        d = d.note(format!("tried `{}`", place.display()));
    }
    Box::new(d.help(
        "give `--data FOLDER` (with a `data.toml`) or `--data NAME=FILE,NAME=FILE`, or set `MESHWRIGHT_DATA` to a folder",
    ))
}

fn malformed(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0507, message))
}

fn parse_pairs(given: &str) -> Checked<Source> {
    let mut splits = BTreeMap::<String, BTreeMap<String, FileRef>>::new();
    for pair in given.split(',') {
        let Some((name, file)) = pair.split_once('=').map(|(n, f)| (n.trim(), f.trim())) else {
            return Err(Box::new(malformed(format!("`{pair}` in `--data` is not `NAME=FILE`")).help(FORM)));
        };
        let (split, name) = name.split_once('.').unwrap_or(("train", name));
        if name.is_empty() || file.is_empty() {
            return Err(Box::new(
                malformed(format!("`{pair}` in `--data` lacks a name or a file")).help(FORM),
            ));
        }
        check_split(split, "--data")?;
        let file = FileRef::parse(file, Path::new(""));
        if splits.entry(split.to_string()).or_default().insert(name.to_string(), file).is_some() {
            return Err(malformed(format!("`{name}` occurs twice in `--data`")));
        }
    }
    Ok(Source { place: "--data".into(), exact: true, splits })
}

const FORM: &str =
    "write `--data image=FILE,label=FILE`, and `test.image=FILE,test.label=FILE` for the test set";

fn check_split(split: &str, place: &str) -> Checked<()> {
    if SPLITS.contains(&split) {
        return Ok(());
    }
    let d = malformed(format!("`{split}` in `{place}` is not a split; the splits are `train` and `test`"));
    Err(match nearest(split, SPLITS) {
        Some(near) => Box::new(d.help(format!("did you mean `{near}`?"))),
        None => d,
    })
}

fn read_manifest(folder: &Path) -> Checked<Source> {
    let path = folder.join(MANIFEST);
    let place = path.display().to_string();
    let text =
        std::fs::read_to_string(&path).map_err(|e| malformed(format!("`{place}` cannot be read: {e}")))?;
    let table: BTreeMap<String, BTreeMap<String, String>> = toml::from_str(&text).map_err(|e| {
        let line = e.span().map_or(1, |s| text.get(..s.start).unwrap_or("").matches('\n').count() + 1);
        malformed(format!(
            "`{place}` is malformed at line {line}: {}",
            e.message().lines().next().unwrap_or("")
        ))
        .help("it holds `[train]` and `[test]` with a line `INPUT = \"FILE\"` for every input")
    })?;
    let mut splits = BTreeMap::new();
    for (split, files) in table {
        check_split(&split, &place)?;
        splits.insert(split, files.into_iter().map(|(k, v)| (k, FileRef::parse(&v, folder))).collect());
    }
    Ok(Source { place: folder.display().to_string(), exact: false, splits })
}
