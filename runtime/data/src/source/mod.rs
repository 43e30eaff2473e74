//! The files that a run reads, by `--data` and `data.toml`.

pub(super) mod find;
pub(super) mod manifest;
pub(super) mod pattern;

use super::tokens::{TokenFiles, TokenSource};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::Checked;
use meshwright_plan::{Dims, InputDecl};
use meshwright_sorted::SortedMap;
use std::path::{Path, PathBuf};

/// Files of one name, and which part of them where they hold several: `FILE`, `FILE.safetensors:TENSOR`, `FILE.npz:NAME` or
/// `FILE.csv:COLUMN`. In `FILE`, `*`, `?`, `[…]` and `{a,b}`, `{00..12}` stand for several names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The file.
    pub path: PathBuf,
    /// Name of a tensor in it, or of columns.
    pub parts: Vec<String>,
    /// A table's names of the values 0, 1, and so on.
    pub classes: Vec<String>,
}

impl AsRef<Path> for FileRef {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl FileRef {
    /// Reads `FILE` or `FILE.safetensors:TENSOR`, relative to `folder`.
    pub(super) fn parse(text: &str, folder: &Path) -> FileRef {
        const ENDS: [&str; 3] = [".safetensors:", ".npz:", ".csv:"];
        let at = ENDS.iter().find_map(|end| text.find(end).map(|at| at + end.len() - 1));
        match at {
            Some(at) => {
                let (path, part) = text.split_at(at);
                FileRef { path: folder.join(path), parts: vec![part[1..].to_string()], classes: Vec::new() }
            }
            None => FileRef { path: folder.join(text), parts: Vec::new(), classes: Vec::new() },
        }
    }

    /// Whether the name ends in this, gzipped or not.
    pub(super) fn is(&self, ending: &str) -> bool {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.strip_suffix(".gz").unwrap_or(&name).ends_with(ending)
    }
}

impl std::fmt::Display for FileRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.parts.is_empty() {
            return Ok(());
        }
        write!(f, ":{}", self.parts.join(","))
    }
}

/// Source of an input.
#[derive(Clone, Debug, PartialEq)]
pub enum InputSource {
    /// The records of files, one after the other.
    Files(Vec<FileRef>),
    /// Pieces of one long stream of values, which files hold one after the other.
    Stream {
        /// The files.
        files: Vec<FileRef>,
        /// The windows that are cut from it.
        cut: StreamCut,
    },
    /// The members of shards with one of these endings; the first one found counts.
    Members(Vec<String>),
    /// The folder in which each file of another input lies: its position in `classes`.
    FolderOf {
        /// The other input.
        input: String,
        /// Names of folders.
        classes: Vec<String>,
    },
    /// This field of examples that are made of text.
    Field(String),
    /// 1 where another input has a value, and 0 where its file has the number that stands for none.
    MaskOf(String),
    /// A number for each value of another input, as class weights are.
    Weights {
        /// The other input, whose values are positions in `weights`.
        by: String,
        /// The numbers.
        weights: Vec<f64>,
    },
}

/// Windows of a stream: number `i` starts at position `i * stride + shift`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamCut {
    /// The dim of the input that has the length of a window.
    pub window: String,
    /// Distance between windows; by default the length of a window.
    pub stride: Option<usize>,
    /// Shift of all windows: 1 for the target of a model that predicts the next value.
    pub shift: usize,
}

/// Order of a training set.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OrderSource {
    /// Shuffled anew in each epoch.
    #[default]
    Shuffled,
    /// As the files have it.
    Unshuffled,
    /// File by file in another order each epoch, and shuffled in a buffer of this number of examples.
    Buffered(usize),
    /// Drawn with these chances, with replacement.
    Weighted(InputSource),
}

/// Sources of the examples of one set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SplitSource {
    /// By input.
    pub inputs: SortedMap<String, InputSource>,
    /// Tar files whose members are parts of examples.
    pub shards: Vec<FileRef>,
    /// Text that examples are made of.
    pub tokens: Option<TokenSource>,
    /// The number that stands for no value, of inputs that have one.
    pub ignored: SortedMap<String, i64>,
    /// Leave out examples that cannot be decoded, or lack a part.
    pub skip_damaged: bool,
    /// Most examples to use, from the first.
    pub limit: Option<usize>,
    /// The order in training.
    pub order: OrderSource,
}

/// The sets of examples of a run: `train`, `validation`, `test`.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Its name for the user: a folder or `--data`.
    pub place: String,
    /// The folder with the `data.toml`, if it is one.
    pub folder: Option<PathBuf>,
    /// Whether every name must be an input of the model. A folder may hold more than a model uses.
    pub exact: bool,
    /// By name.
    pub splits: SortedMap<String, SplitSource>,
}

impl Source {
    /// The files that inputs of all sets are read from, as they are named: some may be patterns.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.splits.values().flat_map(|split| {
            let of_inputs = split.inputs.values().flat_map(|input| match input {
                InputSource::Files(files) | InputSource::Stream { files, .. } => files.as_slice(),
                _ => &[],
            });
            of_inputs.chain(&split.shards).map(|file| file.path.as_path())
        })
    }

    /// Names of an input's values, if its files or its text have them.
    pub(super) fn classes(&self, input: &str) -> Option<&[String]> {
        fn names<'a>(set: &'a SplitSource, input: &str) -> Option<&'a [String]> {
            let found: &[String] = match set.inputs.get(input)? {
                InputSource::Files(files) => &files.first()?.classes,
                InputSource::FolderOf { classes, .. } => classes,
                InputSource::Field(field) if field == "label" => &set.tokens.as_ref()?.labels.classes,
                _ => return None,
            };
            Some(found).filter(|c| !c.is_empty())
        }
        self.splits.values().find_map(|set| names(set, input))
    }

    /// Names of the positions along dims, by the inputs whose values are such positions.
    pub fn class_names<'a>(
        &self,
        inputs: impl Iterator<Item = &'a InputDecl>,
        dims: &Dims,
    ) -> SortedMap<String, Vec<String>> {
        let named = |i: &InputDecl| Some((dims.name(i.range?).to_string(), self.classes(&i.name)?.to_vec()));
        inputs.filter_map(named).collect()
    }

    /// Makes another tokenizer the one for text that has no tokens yet.
    pub fn tokenized_by(&mut self, other: &Path) {
        for set in self.splits.values_mut() {
            if let Some(TokenFiles::Text { tokenizer, cased, .. }) = set.tokens.as_mut().map(|t| &mut t.files)
            {
                (*tokenizer, *cased) = (other.into(), false);
            }
        }
    }

    /// Whether there is a split of that name.
    pub fn has(&self, split: &str) -> bool {
        self.splits.contains_key(split)
    }
}

const SPLITS: [&str; 3] = ["train", "validation", "test"];

pub(super) fn malformed(message: String) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0507, message))
}

pub(super) fn check_split(split: &str, place: &str) -> Checked<()> {
    if SPLITS.contains(&split) {
        return Ok(());
    }
    let d = malformed(format!(
        "`{split}` in `{place}` is not a split; the splits are `train`, `validation` and `test`"
    ));
    Err(match nearest(split, SPLITS) {
        Some(near) => Box::new(d.help(format!("did you mean `{near}`?"))),
        None => d,
    })
}
