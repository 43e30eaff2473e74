//! A file of the safetensors format that is open: its header is read and checked, a tensor is read when it is asked for. So no
//! more than one tensor is in memory, however large the file is.

use meshwright_files::durable::{FileReader, tried};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::fs::File;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::sync::Mutex;

/// Most bytes of a header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Names, dtypes and shapes of the tensors of a file, and the file.
pub struct TensorFile {
    header: Metadata,
    /// Where the bytes of the first tensor begin.
    start: u64,
    source: Mutex<Box<dyn FileReader>>,
}

impl std::fmt::Debug for TensorFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl TensorFile {
    /// Reads the header of a file of `len` bytes. An error says what is wrong, without the file's name.
    pub(crate) fn new(mut source: Box<dyn FileReader>, len: u64) -> Result<TensorFile, String> {
        let broken = |why: &dyn std::fmt::Display| format!("its header is broken: {why}");
        let mut size = [0; 8];
        source.read_exact(&mut size).map_err(|e| broken(&e))?;
        let size = u64::from_le_bytes(size);
        if size > len.min(MAX_HEADER) {
            return Err(broken(&format!("it should take {size} bytes, the file has {len}")));
        }
        let mut head = vec![0; size as usize];
        source.read_exact(&mut head).map_err(|e| broken(&e))?;
        let header: Metadata = serde_json::from_slice(&head).map_err(|e| broken(&e))?;
        let start = 8 + size;
        if (header.data_len() as u64).checked_add(start) != Some(len) {
            return Err(broken(&"its tensors do not fill the file"));
        }
        Ok(TensorFile { header, start, source: Mutex::new(source) })
    }

    /// Opens a file on disk.
    pub(crate) fn open(path: &Path) -> Result<TensorFile, String> {
        let open = || -> io::Result<(File, u64)> {
            let file = meshwright_files::text_file::open_text(path)?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        let (file, len) = open().map_err(|e| e.to_string())?;
        TensorFile::new(Box::new(file), len)
    }

    /// Names of its tensors, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    /// Element type and shape of a tensor.
    pub(crate) fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.header.info(name).map(|i| (i.dtype, i.shape.as_slice()))
    }

    /// A value of the metadata, where a file may say what else it likes.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The bytes of a tensor: dense, row-major, little-endian. None for one that it does not have.
    pub(crate) fn bytes(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(TensorInfo { data_offsets: (from, to), .. }) = self.header.info(name) else {
            return Ok(None);
        };
        let mut source = self.source.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        tried(|| {
            source.seek(SeekFrom::Start(self.start + *from as u64))?;
            let mut bytes = vec![0; to - from];
            source.read_exact(&mut bytes)?;
            Ok(Some(bytes))
        })
    }
}
