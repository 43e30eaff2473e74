//! A checkpoint as bytes: safetensors, with everything else as JSON under one key of its metadata.

use crate::{Checked, RawTensor};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_plan::DType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Version of the format that this code writes and reads.
pub(super) const FORMAT: u32 = 1;

/// The one key of the safetensors metadata. One, because a map of several has no fixed order there.
const KEY: &str = "meshwright";

/// Where a run stands.
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
    /// What the log was when the checkpoint was made; none where there was no log.
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

/// The losses of an epoch's steps so far, of which a mean is made at its end.
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

/// A whole checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Where the run stands.
    pub meta: Meta,
    /// Parameters by path, moments by `PATH/m` and the like.
    pub tensors: BTreeMap<String, RawTensor>,
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
    /// The tensor of that name, which must have that shape.
    ///
    /// # Errors
    ///
    /// E0513 where it is missing or has another shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Checked<&RawTensor> {
        let Some(tensor) = self.tensors.get(name) else {
            let mut error = self.misfit(format!("the checkpoint of step {} has no `{name}`", self.meta.step));
            if let Some(near) = nearest(name, self.tensors.keys().map(String::as_str)) {
                error =
                    error.help(format!("it has `{near}`; `as` in the model keeps a parameter's old name"));
            }
            return Err(Box::new(error));
        };
        if tensor.shape != shape {
            let message = format!(
                "`{name}` is {:?} in the checkpoint of step {}, {shape:?} in the model",
                tensor.shape, self.meta.step
            );
            return Err(Box::new(
                self.misfit(message).help("give the same `--dim` as the run that wrote it"),
            ));
        }
        Ok(tensor)
    }

    /// Checks that the checkpoint has no tensor but those named `expected`; one that nobody takes hints at a renamed layer.
    ///
    /// # Errors
    ///
    /// E0513.
    pub fn only<'a>(&self, expected: impl IntoIterator<Item = &'a str>) -> Checked<()> {
        let expected: std::collections::BTreeSet<&str> = expected.into_iter().collect();
        match self.tensors.keys().find(|n| !expected.contains(n.as_str())) {
            None => Ok(()),
            Some(name) => {
                let step = self.meta.step;
                Err(Box::new(
                    self.misfit(format!("the checkpoint of step {step} has `{name}`, the model does not")),
                ))
            }
        }
    }

    fn misfit(&self, message: String) -> Diagnostic {
        Diagnostic::error(codes::E0513, message)
            .note(format!("it was written by model `{}`", self.meta.model))
    }
}

/// Reads one `.safetensors` file of a checkpoint by itself, as copied from a run.
///
/// # Errors
///
/// E0512 where it is missing, malformed, or no checkpoint.
pub fn read_file(path: &Path) -> Checked<Checkpoint> {
    let error = |why: String| {
        Box::new(Diagnostic::error(
            codes::E0512,
            format!("`{}` is not a usable checkpoint: {why}", path.display()),
        ))
    };
    decode(&std::fs::read(path).map_err(|e| error(e.to_string()))?).map_err(error)
}

/// The bytes of a checkpoint: the same for the same content.
pub(super) fn encode(meta: &Meta, tensors: &[(&str, &RawTensor)]) -> Result<Vec<u8>, String> {
    let mut views = Vec::with_capacity(tensors.len());
    let mut names = std::collections::BTreeSet::new();
    for (name, tensor) in tensors {
        if !names.insert(name) {
            return Err(format!("`{name}` occurs twice"));
        }
        if RawTensor::bytes_of(tensor.dtype, &tensor.shape) != Some(tensor.data.len()) {
            return Err(format!("`{name}` has {} bytes, which {:?} is not", tensor.data.len(), tensor.shape));
        }
        let dtype = to_file(tensor.dtype)
            .ok_or_else(|| format!("`{name}` has no dtype of files: {}", tensor.dtype))?;
        let view = TensorView::new(dtype, tensor.shape.clone(), &tensor.data)
            .map_err(|e| format!("`{name}`: {e}"))?;
        views.push((*name, view));
    }
    let json = serde_json::to_string(meta).map_err(|e| e.to_string())?;
    safetensors::serialize(views, Some(HashMap::from([(KEY.to_string(), json)]))).map_err(|e| e.to_string())
}

pub(super) fn decode(bytes: &[u8]) -> Result<Checkpoint, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let (meta, _) = describe(&header)?;
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let dtype =
            from_file(view.dtype()).ok_or_else(|| format!("`{name}` has elements of {:?}", view.dtype()))?;
        tensors.insert(
            name.to_string(),
            RawTensor { dtype, shape: view.shape().to_vec(), data: view.data().to_vec() },
        );
    }
    Ok(Checkpoint { meta, tensors })
}

/// What a header says, without the tensors' bytes.
pub(super) fn describe(header: &safetensors::tensor::Metadata) -> Result<(Meta, Vec<TensorInfo>), String> {
    let json =
        header.metadata().as_ref().and_then(|m| m.get(KEY)).ok_or("it was not written as a checkpoint")?;
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
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let dtype =
            from_file(info.dtype).ok_or_else(|| format!("`{name}` has elements of {:?}", info.dtype))?;
        infos.push(TensorInfo { name, dtype, shape: info.shape.clone() });
    }
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((meta, infos))
}

fn to_file(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::BF16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        DType::PairF32 | DType::PairF64 => return None,
    })
}

fn from_file(dtype: Dtype) -> Option<DType> {
    [DType::F64, DType::F32, DType::BF16, DType::I32, DType::U8, DType::Bool]
        .into_iter()
        .find(|d| to_file(*d) == Some(dtype))
}
