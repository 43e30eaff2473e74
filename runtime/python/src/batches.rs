//! The batches of a data set, as a training takes them.

use crate::arrays::array_of;
use crate::process::{failed, not_forked};
use meshwright_cli::embedded;
use meshwright_diag::Sources;
use meshwright_train::BatchReader;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::OsString;

/// A split of the data, batch by batch.
#[pyclass(frozen)]
pub(crate) struct Batches {
    reader: BatchReader,
    sources: Sources,
}

#[pymethods]
impl Batches {
    /// Of the words of `train`, which name the data.
    #[new]
    fn new(py: Python<'_>, words: Vec<OsString>, split: &str) -> PyResult<Batches> {
        not_forked(py)?;
        let opened = py.detach(|| {
            let ((project, sources, options), _) = embedded::project(&words)?;
            match BatchReader::open(&project, &options, split) {
                Ok(reader) => Ok(Batches { reader, sources }),
                Err(failure) => Err(embedded::failed(failure, &sources)),
            }
        });
        opened.map_err(|ended| failed(py, &ended))
    }

    fn __len__(&self) -> usize {
        self.reader.batches() as usize
    }

    /// The batch of that number, from 0.
    fn batch<'py>(&self, py: Python<'py>, n: u64) -> PyResult<Bound<'py, PyDict>> {
        let read = py.detach(|| self.reader.batch(n).map_err(|f| embedded::failed(f, &self.sources)));
        let out = PyDict::new(py);
        for (name, tensor) in read.map_err(|ended| failed(py, &ended))? {
            out.set_item(name, array_of(py, tensor)?)?;
        }
        Ok(out)
    }
}
