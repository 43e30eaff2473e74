//! Writes tensors to files that others read: `.npy`, `.npz`, `.safetensors`, or a folder of `.npy` files. A file is written under
//! another name and renamed when it is whole, so that an earlier one stays until then.

use crate::devices::host_tensor::raw_of;
use meshwright_diag::{Diagnostic, codes};
use meshwright_exec::{HostData, HostTensor};
use meshwright_files::Checked;
use meshwright_files::replacing::ReplacingFile;
use meshwright_files::tensor::RawTensor;
use meshwright_plan::DType;
use safetensors::tensor::{Dtype, TensorView};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// An output over all examples.
#[derive(Clone, Debug)]
pub struct PredictedOutput {
    /// Its name, or the path of a value.
    pub name: String,
    /// Names of its dims; the example dim, if it has it, is the first.
    pub dims: Vec<String>,
    /// Whether it has a value for each example.
    pub each_example: bool,
    /// The dim that its values are positions along.
    pub position_in: Option<String>,
    /// The values.
    pub tensor: HostTensor,
}

/// How tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrayFormat {
    /// One tensor.
    Npy,
    /// Several, by name.
    Npz,
    /// Several, by name.
    Safetensors,
    /// A folder with a `.npy` file for each.
    Folder,
}

/// A file, or a folder, to write tensors to.
#[derive(Clone, Debug)]
pub(crate) struct ArrayTarget {
    path: PathBuf,
    format: ArrayFormat,
}

/// A file that was written, and the names of what is in it.
#[derive(Clone, Debug)]
pub(crate) struct ArrayFile {
    pub(crate) path: PathBuf,
    pub(crate) names: Vec<String>,
}

impl ArrayTarget {
    /// What `path` names, for tensors of these names.
    ///
    /// # Errors
    ///
    /// E0516 where it cannot hold them.
    pub(crate) fn of(path: &Path, names: &[&str]) -> Checked<ArrayTarget> {
        let shown = path.display();
        let wrong =
            |message: String, help: String| Box::new(Diagnostic::error(codes::E0516, message).help(help));
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let folder = path.is_dir() || path.to_string_lossy().ends_with('/');
        let format = match ending.as_deref() {
            _ if folder => ArrayFormat::Folder,
            Some("npy") => ArrayFormat::Npy,
            Some("npz") => ArrayFormat::Npz,
            Some("safetensors") => ArrayFormat::Safetensors,
            None => ArrayFormat::Folder,
            Some(other) => {
                let message = format!("`-o {shown}`: nothing is written as `.{other}`");
                let help = "end it in `.npy`, `.npz` or `.safetensors`, or in `/` for a folder";
                return Err(wrong(message, help.into()));
            }
        };
        if let (ArrayFormat::Npy, [first, _, ..]) = (format, names) {
            let message =
                format!("`{shown}` holds one tensor, and there are {}: {}", names.len(), names.join(", "));
            let stem = path.with_extension("npz");
            let help = format!("write all of them to `{}`, or one: `--output {first}`", stem.display());
            return Err(wrong(message, help));
        }
        let within = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !within.is_dir() {
            let message = format!("`{shown}` cannot be written: there is no folder `{}`", within.display());
            return Err(wrong(message, format!("make it: `mkdir -p {}`", within.display())));
        }
        if format == ArrayFormat::Folder && path.exists() && !path.is_dir() {
            let message = format!("`{shown}` is a file; without an ending, `-o` names a folder");
            return Err(wrong(message, format!("name another folder, or a file: `{shown}.npz`")));
        }
        Ok(ArrayTarget { path: path.into(), format })
    }

    /// The file of an output of this name.
    fn file_of(&self, name: &str) -> PathBuf {
        match self.format {
            ArrayFormat::Folder => self.path.join(format!("{name}.npy")),
            ArrayFormat::Npy | ArrayFormat::Npz | ArrayFormat::Safetensors => self.path.clone(),
        }
    }

    /// That tensors of these names replace none of the files that are `read`.
    ///
    /// # Errors
    ///
    /// E0516 where they would.
    pub(crate) fn beside(&self, read: &[PathBuf], names: &[&str]) -> Checked<()> {
        let real = |path: &Path| path.canonicalize().ok();
        let read: Vec<PathBuf> = read.iter().filter_map(|path| real(path)).collect();
        let files = names.iter().map(|name| self.file_of(name));
        let Some(file) = files.into_iter().find(|to| real(to).is_some_and(|to| read.contains(&to))) else {
            return Ok(());
        };
        let message = format!("`{}` is read for its examples: the outputs would replace it", file.display());
        Err(Box::new(Diagnostic::error(codes::E0516, message).help("name another file behind `-o`")))
    }

    /// Writes all outputs.
    ///
    /// # Errors
    ///
    /// E0516 with what the system says.
    pub(crate) fn write(&self, outputs: &[PredictedOutput]) -> Checked<Vec<ArrayFile>> {
        let path = &self.path;
        let file = |path: &Path, done: io::Result<()>, names: Vec<String>| match done {
            Ok(()) => Ok(ArrayFile { path: path.into(), names }),
            Err(e) => {
                let message = format!("`{}` cannot be written: {e}", path.display());
                Err(Box::new(Diagnostic::error(codes::E0516, message)))
            }
        };
        let names = || outputs.iter().map(|o| o.name.clone()).collect();
        match self.format {
            ArrayFormat::Npy => {
                let none = || Err(io::Error::other("there is nothing to write"));
                let first = outputs.first().map_or_else(none, |o| replaced(path, |to| npy(to, &o.tensor)));
                Ok(vec![file(path, first, names())?])
            }
            ArrayFormat::Npz => Ok(vec![file(path, replaced(path, |to| npz(to, outputs)), names())?]),
            ArrayFormat::Safetensors => {
                Ok(vec![file(path, replaced(path, |to| safetensors(to, outputs)), names())?])
            }
            ArrayFormat::Folder => {
                if let Err(e) = std::fs::create_dir_all(path) {
                    file(path, Err(e), Vec::new())?;
                }
                let one = |o: &PredictedOutput| {
                    let path = self.file_of(&o.name);
                    let done = replaced(&path, |to| npy(to, &o.tensor));
                    file(&path, done, vec![o.name.clone()])
                };
                outputs.iter().map(one).collect()
            }
        }
    }
}

/// Writes a file under another name, and gives it its name when all of it is on disk.
fn replaced(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&std::fs::File>) -> io::Result<()>,
) -> io::Result<()> {
    let new = ReplacingFile::beside(path)?;
    let mut to = BufWriter::new(new.file());
    write(&mut to)?;
    to.flush()?;
    drop(to);
    new.replace_durably()
}

/// NumPy's format 1.0. NumPy has no bf16: such values are written as f32, which has all of them.
fn npy(to: &mut dyn Write, tensor: &HostTensor) -> io::Result<()> {
    let (descr, bytes) = numpy(tensor)?;
    let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
    let shape = match shape.as_slice() {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version, length and header fill whole lines of 64 bytes; the last one ends in a line feed.
    const BEFORE: usize = 10;
    let filled = (BEFORE + header.len() + 1).next_multiple_of(64) - BEFORE - 1;
    header = format!("{header:filled$}\n");
    let length = u16::try_from(header.len()).map_err(|_| io::Error::other("it has too many dims"))?;
    to.write_all(b"\x93NUMPY\x01\x00")?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    to.write_all(&bytes)
}

/// How NumPy calls the dtype, and the bytes.
fn numpy(tensor: &HostTensor) -> io::Result<(&'static str, Vec<u8>)> {
    let descr = match tensor.dtype() {
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 | DType::PairF32 | DType::PairF64 => {
            let data = HostData::from_f64(DType::F32, tensor.data.to_f64());
            return Ok(("<f4", raw(&HostTensor { shape: tensor.shape.clone(), data })?.data));
        }
    };
    Ok((descr, raw(tensor)?.data))
}

fn raw(tensor: &HostTensor) -> io::Result<RawTensor> {
    raw_of(tensor).ok_or_else(|| io::Error::other("it holds pairs, which no file does"))
}

fn npz(to: &mut dyn Write, outputs: &[PredictedOutput]) -> io::Result<()> {
    // A zip file is written back and forth, in memory; its members are stored as they are, as `numpy.savez` does.
    let mut zip = ZipWriter::new(io::Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    for o in outputs {
        zip.start_file(format!("{}.npy", o.name), stored).map_err(io::Error::other)?;
        npy(&mut zip, &o.tensor)?;
    }
    let whole = zip.finish().map_err(io::Error::other)?.into_inner();
    to.write_all(&whole)
}

fn safetensors(to: &mut dyn Write, outputs: &[PredictedOutput]) -> io::Result<()> {
    let raw: Vec<(&str, RawTensor)> =
        outputs.iter().map(|o| Ok((o.name.as_str(), raw(&o.tensor)?))).collect::<io::Result<_>>()?;
    let mut views = Vec::new();
    for (name, t) in &raw {
        let dtype = match t.dtype {
            DType::F64 => Dtype::F64,
            DType::BF16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            DType::I32 => Dtype::I32,
            DType::U8 => Dtype::U8,
            DType::Bool => Dtype::BOOL,
            DType::F32 | DType::PairF32 | DType::PairF64 => Dtype::F32,
        };
        let view = TensorView::new(dtype, t.shape.clone(), &t.data).map_err(io::Error::other)?;
        views.push((*name, view));
    }
    let bytes = safetensors::serialize(views, None).map_err(io::Error::other)?;
    to.write_all(&bytes)
}
