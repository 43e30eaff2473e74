//! A checkpoint as bytes: safetensors, with everything else as JSON under one key of its metadata.

use super::tensor_file::TensorFile;
use crate::checkpoint::{INDEX, TensorSource};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_files::text::listed;
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;
use safetensors::Dtype;
use safetensors::tensor::{self, Metadata};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// Version of the format that this code writes and reads.
pub(super) const FORMAT: u32 = 1;

/// Suffix of the names of moving averages of parameters.
pub const AVERAGE: &str = "/ema";

/// The one key of the safetensors metadata. One, because a map of several has no fixed order there.
const KEY: &str = "meshwright";

/// Position of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Version of the format.
    pub format: u32,
    /// Name of the model.
    pub model: String,
    /// Steps done.
    pub step: u64,
    /// Epochs done.
    pub epoch: u32,
    /// Examples of the next epoch that are done.
    pub position: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Losses of the epoch at hand. At the end of an epoch: of that epoch while it is not evaluated yet, and none from then
    /// on. Checkpoints written before there were any have none.
    #[serde(default)]
    pub losses: EpochLosses,
    /// Mark of the log when the checkpoint was made; none without a log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogMark>,
}

/// The beginning of a log: its length, and the SHA-256 of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogMark {
    /// Bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
}

/// The losses of an epoch's steps so far, from which a mean is made at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochLosses {
    /// Their sum.
    pub sum: f64,
    /// Their number.
    pub steps: u64,
}

impl EpochLosses {
    /// Adds the loss of a step.
    pub fn add(&mut self, loss: f64) {
        // JSON has no infinity.
        self.sum = (self.sum + loss).clamp(f64::MIN, f64::MAX);
        self.steps += 1;
    }

    /// Their mean; 0 where there is none.
    pub fn mean(&self) -> f64 {
        self.sum / self.steps.max(1) as f64
    }
}

impl Meta {
    /// Of the format that this code writes, without losses.
    pub fn new(model: impl Into<String>, step: u64, epoch: u32, position: u64, seed: u64) -> Meta {
        let losses = EpochLosses::default();
        Meta { format: FORMAT, model: model.into(), step, epoch, position, seed, losses, log: None }
    }
}

/// A checkpoint that is open. Its tensors are read when they are asked for: parameters by path, moments by `PATH/m` and the like.
#[derive(Debug)]
pub struct Checkpoint {
    /// Position of the run.
    pub meta: Meta,
    /// Its tensors, in order of names.
    pub tensors: Vec<TensorInfo>,
    source: TensorSource,
    /// Name in messages, for files that no run wrote.
    plain: Option<String>,
}

/// Name, dtype and shape of a tensor in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Parameter's path, or a moment's `PATH/m`.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Declared sizes.
    pub shape: Vec<usize>,
}

impl Checkpoint {
    /// Of a file that was written as a checkpoint.
    pub(super) fn of(file: TensorFile) -> Result<Checkpoint, String> {
        let (meta, tensors) = describe(&file)?;
        Ok(Checkpoint { meta, tensors, source: TensorSource::one(file), plain: None })
    }

    /// Of files of any framework: parameters by their paths, and nothing of a run. Tensors of types that no parameter has are
    /// left out.
    fn plain(source: TensorSource, path: &Path) -> Checkpoint {
        let info = |name: String| {
            let (dtype, shape) = source.info(&name)?;
            Some(TensorInfo { dtype: from_file(dtype)?, shape: shape.to_vec(), name })
        };
        let tensors = source.names().into_iter().filter_map(info).collect();
        Checkpoint {
            meta: Meta::new("", 0, 0, 0, 0),
            tensors,
            source,
            plain: Some(format!("`{}`", path.display())),
        }
    }

    /// Whether no run wrote it.
    pub fn is_plain(&self) -> bool {
        self.plain.is_some()
    }

    /// Names of all tensors of its files.
    pub fn names(&self) -> Vec<String> {
        self.source.names()
    }

    /// Its description, in words.
    pub fn place(&self) -> String {
        self.plain.clone().unwrap_or_else(|| format!("the checkpoint of step {}", self.meta.step))
    }

    /// Its tensors.
    pub fn into_source(self) -> TensorSource {
        self.source
    }

    /// Description of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.tensors.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        self.tensors.get(at)
    }

    /// Checks that the tensor of that name is there, has that shape, and elements of that kind: floats of another width do.
    ///
    /// # Errors
    ///
    /// E0513.
    pub fn fits(&self, name: &str, dtype: DType, shape: &[usize]) -> Checked<&TensorInfo> {
        let Some(info) = self.info(name) else {
            if let Some((other, _)) = self.source.info(name) {
                let message =
                    format!("`{name}` of {} has elements of {other:?}, not {}", self.place(), dtype.name());
                let help = "write it as floats: the model's parameters are that";
                return Err(Box::new(self.misfit(message).help(help)));
            }
            let mut error = self.misfit(format!("{} has no `{name}`", self.place()));
            if name.strip_suffix(AVERAGE).is_some_and(|path| self.info(path).is_some()) {
                error = error.help("it has the parameters themselves: `--no-ema` reads them");
            } else if self.is_plain() {
                let names = self.names();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                error = error.note(format!("it has {}", listed(&names))).help(
                    "`train --init FILE --init-map RULES` makes a run of tensors that have other names",
                );
            } else if let Some(near) = nearest(name, self.tensors.iter().map(|t| t.name.as_str())) {
                error = error.help(format!(
                    "it has `{near}`; `as` in the model keeps a parameter's old name, and `meshwright ckpt rename` gives new ones"
                ));
            }
            return Err(Box::new(error));
        };
        if info.shape != shape {
            let message = format!("`{name}` is {:?} in {}, {shape:?} in the model", info.shape, self.place());
            let help = match self.plain {
                None => "give the same `--dim` as the run that wrote it",
                Some(_) => "give the `--dim` that it was made with",
            };
            return Err(Box::new(self.misfit(message).help(help)));
        }
        if info.dtype != dtype && !(info.dtype.is_float() && dtype.is_float()) {
            let (is, step) = (info.dtype.name(), self.meta.step);
            let message = format!(
                "`{name}` is of {is} in the checkpoint of step {step}, and of {} in the model",
                dtype.name()
            );
            return Err(Box::new(self.misfit(message).help("restore the file from a copy")));
        }
        Ok(info)
    }

    /// Reads a tensor that is there.
    ///
    /// # Errors
    ///
    /// E0512 where it is not there or the file cannot be read.
    pub fn tensor(&self, name: &str) -> Checked<RawTensor> {
        let unread = |why: String| {
            let message = format!("`{name}` of {} cannot be read: {why}", self.place());
            Box::new(Diagnostic::error(codes::E0512, message))
        };
        let bytes = self.source.bytes(name).map_err(|e| unread(e.to_string()))?;
        match (self.info(name), bytes) {
            (Some(info), Some(data)) => Ok(RawTensor { dtype: info.dtype, shape: info.shape.clone(), data }),
            _ => Err(unread("it is not there".into())),
        }
    }

    /// All tensors by name.
    ///
    /// # Errors
    ///
    /// Those of [`Checkpoint::tensor`].
    pub fn whole(&self) -> Checked<SortedMap<String, RawTensor>> {
        self.tensors.iter().map(|t| Ok((t.name.clone(), self.tensor(&t.name)?))).collect()
    }

    /// Checks that the checkpoint has no tensor but those named `expected`; one that nobody takes hints at a renamed layer.
    ///
    /// # Errors
    ///
    /// E0513.
    pub fn only<'a>(&self, expected: impl IntoIterator<Item = &'a str>) -> Checked<()> {
        let expected: meshwright_sorted::SortedSet<&str> = expected.into_iter().collect();
        match self.tensors.iter().map(|t| &t.name).find(|n| !expected.contains(n.as_str())) {
            None => Ok(()),
            Some(name) => {
                Err(Box::new(self.misfit(format!("{} has `{name}`, the model does not", self.place()))))
            }
        }
    }

    fn misfit(&self, message: String) -> Diagnostic {
        let d = Diagnostic::error(codes::E0513, message);
        if self.is_plain() { d } else { d.note(format!("it was written by model `{}`", self.meta.model)) }
    }
}

/// Reads one `.safetensors` file by itself: a checkpoint that was copied from a run, or parameters by their paths, whoever wrote
/// them. These may be in several files, of which the index is named.
///
/// # Errors
///
/// E0512 where it is missing or malformed.
pub fn read_file(path: &Path) -> Checked<Checkpoint> {
    let error = |why: String| {
        Box::new(Diagnostic::error(
            codes::E0512,
            format!("`{}` is not a usable checkpoint: {why}", path.display()),
        ))
    };
    if path.to_string_lossy().ends_with(INDEX) {
        return Ok(Checkpoint::plain(TensorSource::open(path).map_err(error)?, path));
    }
    let file = TensorFile::open(path).map_err(error)?;
    match file.metadata(KEY) {
        Some(_) => Checkpoint::of(file).map_err(error),
        None => Ok(Checkpoint::plain(TensorSource::one(file), path)),
    }
}

/// A checkpoint as it is written: the header with the length before it, and the tensors in the order of the file.
pub(super) struct Encoded<'a> {
    head: Vec<u8>,
    tensors: Vec<&'a RawTensor>,
}

impl Encoded<'_> {
    /// The parts of the file.
    pub(super) fn parts(&self) -> Vec<&[u8]> {
        std::iter::once(self.head.as_slice()).chain(self.tensors.iter().map(|t| t.data.as_slice())).collect()
    }

    /// Its length.
    pub(super) fn len(&self) -> u64 {
        self.parts().iter().map(|p| p.len() as u64).sum()
    }
}

/// A checkpoint as a file: the same for the same content.
pub(super) fn encode<'a>(meta: &Meta, tensors: &[(&'a str, &'a RawTensor)]) -> Result<Encoded<'a>, String> {
    let json = serde_json::to_string(meta).map_err(|e| e.to_string())?;
    encode_with((KEY, &json), tensors)
}

/// Tensors as a file with one key of metadata.
pub(super) fn encode_with<'a>(
    (key, value): (&str, &str),
    tensors: &[(&'a str, &'a RawTensor)],
) -> Result<Encoded<'a>, String> {
    let mut sorted = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if RawTensor::bytes_of(tensor.dtype, &tensor.shape) != Some(tensor.data.len()) {
            return Err(format!("`{name}` has {} bytes, which {:?} is not", tensor.data.len(), tensor.shape));
        }
        let dtype = to_file(tensor.dtype)
            .ok_or_else(|| format!("`{name}` has no dtype of files: {}", tensor.dtype))?;
        sorted.push((dtype, *name, *tensor));
    }
    // As the format wants it: wide elements first, so that all are aligned.
    sorted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let (mut infos, mut at) = (Vec::with_capacity(sorted.len()), 0);
    let mut names = meshwright_sorted::SortedSet::new();
    for (dtype, name, tensor) in &sorted {
        if !names.insert(name) {
            return Err(format!("`{name}` occurs twice"));
        }
        let data_offsets = (at, at + tensor.data.len());
        at = data_offsets.1;
        let info = tensor::TensorInfo { dtype: *dtype, shape: tensor.shape.clone(), data_offsets };
        infos.push((name.to_string(), info));
    }
    let header = Metadata::new(Some(HashMap::from([(key.to_string(), value.to_string())])), infos);
    let header = serde_json::to_vec(&header.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    let len = header.len().next_multiple_of(8);
    let mut head = (len as u64).to_le_bytes().to_vec();
    head.extend(header);
    head.resize(8 + len, b' ');
    Ok(Encoded { head, tensors: sorted.into_iter().map(|t| t.2).collect() })
}

/// The contents of a header, without the tensors' bytes.
fn describe(file: &TensorFile) -> Result<(Meta, Vec<TensorInfo>), String> {
    let json = file.metadata(KEY).ok_or("it was not written as a checkpoint")?;
    // Another format may have other fields, so its number is read first.
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let format: Format = serde_json::from_str(json).map_err(|e| e.to_string())?;
    if format.format != FORMAT {
        return Err(format!("its format is {}, this program reads {FORMAT}", format.format));
    }
    let meta = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let mut infos = Vec::new();
    for name in file.names() {
        let Some((dtype, shape)) = file.info(&name) else { continue };
        let dtype = from_file(dtype).ok_or_else(|| format!("`{name}` has elements of {dtype:?}"))?;
        infos.push(TensorInfo { name, dtype, shape: shape.to_vec() });
    }
    Ok((meta, infos))
}

fn to_file(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        DType::PairF32 | DType::PairF64 => return None,
    })
}

fn from_file(dtype: Dtype) -> Option<DType> {
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32, DType::U8, DType::Bool]
        .into_iter()
        .find(|d| to_file(*d) == Some(dtype))
}
