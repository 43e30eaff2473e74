//! The tensors of a checkpoint, which may be in several files.

use crate::checkpoint::TensorFile;
use meshwright_sorted::SortedMap;
use safetensors::Dtype;
use serde::Deserialize;
use std::io;
use std::path::Path;

/// What the name of a file ends in that says which of several files has which tensor.
pub const INDEX: &str = ".safetensors.index.json";

/// Tensors by name, of one file or of several.
#[derive(Debug, Default)]
pub struct TensorSource {
    files: Vec<TensorFile>,
    /// Which file has a tensor.
    place: SortedMap<String, usize>,
    /// Tensors that are others under a second name.
    copies: SortedMap<String, String>,
}

/// The content of an index.
#[derive(Deserialize)]
struct WeightIndex {
    weight_map: SortedMap<String, String>,
}

impl TensorSource {
    /// Of one file.
    pub fn one(file: TensorFile) -> TensorSource {
        let place = file.names().into_iter().map(|n| (n, 0)).collect();
        TensorSource { files: vec![file], place, copies: SortedMap::new() }
    }

    /// Opens a `.safetensors` file, or an index with the files that it names, beside it. An error says what is wrong.
    pub fn open(path: &Path) -> Result<TensorSource, String> {
        if !path.to_string_lossy().ends_with(INDEX) {
            return TensorFile::open(path).map(TensorSource::one);
        }
        let bytes = meshwright_files::durable::read_regular(path).map_err(|e| e.to_string())?;
        let index: WeightIndex =
            serde_json::from_slice(&bytes).map_err(|e| format!("it is not an index of tensors: {e}"))?;
        let mut source = TensorSource::default();
        let mut numbers: SortedMap<&str, usize> = SortedMap::new();
        for (tensor, name) in &index.weight_map {
            let number = match numbers.get(name.as_str()) {
                Some(number) => *number,
                None => {
                    let plain = Path::new(name).components().count() == 1 && !name.starts_with('.');
                    if !plain {
                        return Err(format!("it names the file `{name}`, which is not one beside it"));
                    }
                    let file = TensorFile::open(&path.with_file_name(name));
                    source.files.push(file.map_err(|why| format!("`{name}`: {why}"))?);
                    numbers.insert(name, source.files.len() - 1);
                    source.files.len() - 1
                }
            };
            if source.files[number].info(tensor).is_none() {
                return Err(format!("`{name}` has no `{tensor}`, as the index says"));
            }
            source.place.insert(tensor.clone(), number);
        }
        Ok(source)
    }

    /// Lets a tensor that is not there be another one; whether that is so now.
    pub fn tie(&mut self, copy: &str, of: &str) -> bool {
        let ties = self.info(copy).is_none() && self.info(of).is_some();
        if ties {
            self.copies.insert(copy.into(), of.into());
        }
        ties
    }

    /// Names of its tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        self.place.keys().cloned().collect()
    }

    /// Element type and shape of a tensor.
    pub fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.file(name)?.info(self.stored(name))
    }

    /// The bytes of a tensor; see `TensorFile::bytes`.
    pub fn bytes(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.file(name).map_or(Ok(None), |file| file.bytes(self.stored(name)))
    }

    /// The name under which a tensor is stored.
    fn stored<'a>(&'a self, name: &'a str) -> &'a str {
        self.copies.get(name).map_or(name, String::as_str)
    }

    fn file(&self, name: &str) -> Option<&TensorFile> {
        self.files.get(*self.place.get(self.stored(name))?)
    }
}
