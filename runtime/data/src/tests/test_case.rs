//! Helpers of the tests of data.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::*;
use meshwright_diag::Diagnostic;
use meshwright_files::Checked;
use meshwright_plan::{DType, Dim, Dims, InputDecl};
use std::path::Path;
use tempfile::TempDir;

/// A folder with files and the inputs of a model whose example dim is `batch`.
pub(crate) struct DataCase {
    pub(crate) folder: TempDir,
    pub(crate) dims: Dims,
    pub(crate) batch: Dim,
    pub(crate) inputs: Vec<InputDecl>,
    pub(crate) allow_nonfinite: bool,
}

impl DataCase {
    pub(crate) fn new() -> DataCase {
        let mut dims = Dims::default();
        let batch = dims.add("batch", 4);
        let folder = tempfile::tempdir().unwrap();
        DataCase { folder, dims, batch, inputs: Vec::new(), allow_nonfinite: false }
    }

    /// With an input of these dims after the first.
    pub(crate) fn input(mut self, name: &str, dtype: DType, dims: &[(&str, usize)]) -> DataCase {
        let rest: Vec<Dim> = dims
            .iter()
            .map(|(n, size)| {
                let known = self.dims.iter().find(|d| d.1 == *n).map(|d| d.0);
                known.unwrap_or_else(|| self.dims.add(*n, *size))
            })
            .collect();
        let dims = [vec![self.batch], rest].concat();
        self.inputs.push(InputDecl { name: name.into(), dims, dtype, range: None });
        self
    }

    pub(crate) fn file(self, name: &str, bytes: &[u8]) -> DataCase {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn found(&self, toml: &str) -> Checked<Source> {
        std::fs::write(self.path().join("data.toml"), toml).unwrap();
        find(self.path().to_str(), &[], &self.inputs)
    }

    pub(super) fn load_split(&self, toml: &str, split: &str) -> Checked<Dataset> {
        self.loaded(toml, split).map_err(|mut e| Box::new(e.remove(0)))
    }

    pub(crate) fn errors(&self, toml: &str) -> Vec<Diagnostic> {
        self.loaded(toml, "train").unwrap_err()
    }

    fn loaded(&self, toml: &str, split: &str) -> Result<Dataset, Vec<Diagnostic>> {
        let places = Places::new();
        let (inputs, dims) = (&self.inputs, &self.dims);
        let binding = InputBinding { inputs, dims, places: &places, allow_nonfinite: self.allow_nonfinite };
        load(&self.found(toml).map_err(|e| vec![*e])?, split, &binding)
    }

    pub(crate) fn load(&self, toml: &str) -> Checked<Dataset> {
        self.load_split(toml, "train")
    }

    pub(crate) fn message(&self, toml: &str) -> (&'static str, String) {
        let e = self.load(toml).unwrap_err();
        (e.code.id, [&*e.message, &e.notes.join("; "), &e.helps.join("; ")].join("; "))
    }
}

pub(crate) fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.bytes());
    out.extend(data);
    out
}

pub(crate) fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

pub(crate) fn array(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    let data = ints(values);
    npy("<i4", "False", &format!("({},)", data.len() / 4), &data)
}

/// Some records of an input, whole.
pub(crate) fn raw(set: &Dataset, input: &str, records: &[usize]) -> Vec<u8> {
    raw_of(set, input, records, EpochSeed::default())
}

/// The same in some epoch.
pub(crate) fn raw_of(set: &Dataset, input: &str, records: &[usize], seed: EpochSeed) -> Vec<u8> {
    let at = set.find(input).unwrap();
    let (_, dtype, shape) = set.inputs().nth(at).unwrap();
    let ranges: Vec<_> = shape.iter().map(|n| 0..*n).collect();
    let mut out = vec![0; shape.iter().product::<usize>() * dtype.bytes() * records.len()];
    set.read(at, (records, seed), &ranges, &mut out).unwrap();
    out
}

pub(crate) fn values(set: &Dataset, input: &str, records: &[usize]) -> Vec<i32> {
    raw(set, input, records).chunks(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

pub(crate) fn floats(set: &Dataset, input: &str, records: &[usize]) -> Vec<f32> {
    raw(set, input, records).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
